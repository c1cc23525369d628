package bridge

import (
	"errors"
	"fmt"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// checkSettings returns an error if another program has changed a port so that frames do not pass as the
// configuration says. A port that is isolated, or in hairpin mode, although the configuration does not say so may be wanted.
func (b *bridge) checkSettings(port rtnl.Port) error {
	switch {
	case port.Disabled:
		return errors.New("is disabled in the bridge")
	case b.HairpinMode && !port.Hairpin:
		return errors.New("is not in hairpin mode")
	case b.PortIsolation && !port.Isolated:
		return errors.New("is not isolated")
	case len(port.Unusual) > 0:
		return fmt.Errorf("has %s", strings.Join(port.Unusual, ", "))
	}
	return nil
}

// restorePort restores MTU, MAC and alias of the host's end of the veth, makes it a guarded port again, or one that
// ignores routers, attaches it to the bridge, restores its settings, and brings it up. It does not attach a port with VLANs,
// nor brings it up. The state of a port of a bridge with STP is left alone.
func (b *bridge) restorePort(c *sdk.CmdArgs, r *types100.Result) (changed bool, err error) {
	host, name := c.Host.Kernel, c.Owner(b.Name).Veth()
	port, err := host.Port(name)
	if err != nil {
		return false, err
	}
	br, err := host.Index(b.Bridge)
	if err != nil {
		return false, err
	}
	var changes rtnl.Batch
	changed = b.ends(c, r).RestoreHost(&changes, port)
	attach := port.Master != br && !b.tags()
	if attach {
		changes.AttachPort(port.Index, br, b.HairpinMode, b.PortIsolation)
	}
	closed := false
	if !b.guardsSources() {
		if closed, err = veth.IgnoreRouters(name); err != nil {
			return false, fmt.Errorf("port %q of bridge %q: %w", name, b.Bridge, err)
		}
	}
	changed = b.guardPort(&changes, port, attach) || attach || changed
	if port.Disabled {
		delay, err := host.ForwardDelay(b.Bridge)
		if err != nil {
			return false, err
		}
		port.Disabled = delay == 0
	}
	if port.Master == br && b.checkSettings(port) != nil {
		changed = true
		changes.RestorePort(port, b.HairpinMode, b.PortIsolation)
	}
	if !port.Up && !b.tags() {
		changed = true
		changes.BringUp(port.Index)
	}
	if !changed {
		return closed, nil
	}
	if err := host.Apply(&changes); err != nil {
		return closed, fmt.Errorf("port %q of bridge %q: %w", name, b.Bridge, err)
	}
	return true, nil
}
