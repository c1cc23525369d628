package configurator

import (
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/subnets"
)

// switchesQuiet is how long the host must have no allocation before a process that goes on sets switches back: to switch
// forwarding on and off takes longer than an ADD.
const switchesQuiet = time.Minute

// deleteRecord deletes the record of an allocation of which nothing is left. If it was the last one, the switches
// of the host that an ADD has changed are going to be set back.
func (c *Configurator) deleteRecord(id string) error {
	if err := c.store.Delete(id); err != nil {
		return err
	}
	if c.cfg.OneShot {
		c.setBackOrWarn()
		return nil
	}
	c.quietMu.Lock()
	defer c.quietMu.Unlock()
	if c.quiet == nil {
		c.quiet = time.AfterFunc(switchesQuiet, c.setBackOrWarn)
	} else {
		c.quiet.Reset(switchesQuiet)
	}
	return nil
}

// stopQuiet sets the switches back at once if a removal of this process has left that to later.
func (c *Configurator) stopQuiet() {
	c.quietMu.Lock()
	pending := c.quiet != nil && c.quiet.Stop()
	c.quiet = nil
	c.quietMu.Unlock()
	if pending {
		c.setBackOrWarn()
	}
}

func (c *Configurator) setBackOrWarn() {
	if err := c.setBackSwitches(); err != nil {
		c.cfg.Logger.Warn("switches of the host could not be set back; the next removal of a last allocation, or gc, tries it again", "error", err)
	}
}

// setBackSwitches sets the switches of the host back if nothing needs them any more.
func (c *Configurator) setBackSwitches() error {
	if !c.switches.Pending() {
		return nil
	}
	if empty, err := c.store.Empty(); err != nil || !empty {
		return err
	}
	return c.switches.SetBack(c.idle)
}

// idle reports whether nothing on the host may need forwarding: no allocation, whatever made it, and no link between
// which and others the host may forward for another program.
func (c *Configurator) idle() (bool, error) {
	if empty, err := c.store.Empty(); err != nil || !empty {
		return false, err
	}
	// A default route in another table says nothing: other programs give one to the bridge of their containers.
	routes, err := retry.List(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	links, err := retry.List(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("list links: %w", err)
	}
	networks, _ := c.confs.Networks() // a bridge of a network whose file is broken keeps the switches
	var bridges []string
	for _, n := range networks {
		bridges = append(bridges, subnets.BridgeOf(n))
	}
	// An uplink has a default route, or is a port of a bridge that has one.
	var withDefault []int
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if r.LinkIndex > 0 {
			withDefault = append(withDefault, r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			withDefault = append(withDefault, hop.LinkIndex)
		}
	}
	uplink := func(l netlink.Link) bool {
		return slices.Contains(withDefault, l.Attrs().Index) || slices.Contains(withDefault, l.Attrs().MasterIndex)
	}
	return !slices.ContainsFunc(links, func(l netlink.Link) bool {
		if _, owned := names.ParseOwner(l.Attrs().Alias); owned {
			return true
		}
		switch l.Type() {
		case "device", "dummy", "vlan", "bond", "team", "ifb", "sit", "ip6tnl", "gre", "gretap", "erspan", "ipip", "ip_vti", "ip6_vti", "ip6gre":
			return false // what every host may have, also the links that modules of tunnels make
		case "bridge":
			if slices.Contains(bridges, l.Attrs().Name) {
				return false
			}
		}
		return !uplink(l) // the host may be a container itself
	}), nil
}
