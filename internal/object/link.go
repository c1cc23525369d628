package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// End is an end of a veth. Its zero fields are not compared.
type End struct {
	Name string
	// Peer is the name of the other end, in the other network namespace.
	Peer  string
	Alias string
	MAC   net.HardwareAddr
	MTU   int
	// Guarded: it is in a group for which the source guard of routed networks has rules.
	Guarded bool
	// Routed: it is no port of a bridge.
	Routed bool
}

// Compare implements Object.
func (e *End) Compare(_ context.Context, v *View) (list []Difference, err error) {
	have, err := v.link(e.Name)
	if err != nil {
		return nil, err
	}
	if have == nil {
		return e.compareMissing(v)
	}
	if have.Kind != "veth" {
		return []Difference{{Finding: fmt.Errorf("interface %q is a %s, not a veth", e.Name, have.Kind)}}, nil
	}
	index := have.Index
	differs := func(put func(*rtnl.Batch), format string, args ...any) {
		list = append(list, Difference{Finding: fmt.Errorf("interface %q "+format, append([]any{e.Name}, args...)...), Put: put})
	}
	if peer, err := v.peer(e.Peer); err != nil {
		return nil, err
	} else if peer != nil && (have.Peer != peer.Index || peer.Peer != index) {
		differs(nil, "of the host is not the other end of %q", e.Peer)
	}
	if len(e.MAC) > 0 && !bytes.Equal(e.MAC, have.MAC) {
		differs(func(b *rtnl.Batch) { b.SetMAC(index, e.MAC) }, "has the MAC %s, not %s", have.MAC, e.MAC)
	}
	if e.MTU != 0 && e.MTU != have.MTU {
		differs(func(b *rtnl.Batch) { b.SetMTU(index, e.MTU) }, "has the MTU %d, not %d", have.MTU, e.MTU)
	}
	if e.Alias != "" && e.Alias != have.Alias {
		differs(func(b *rtnl.Batch) { b.SetAlias(index, e.Alias) }, "of the host has the alias %q, not %q", have.Alias, e.Alias)
	}
	if e.Guarded && !names.IsGuarded(have.Group) {
		differs(func(b *rtnl.Batch) { b.SetGroup(index, names.GuardedGroup) },
			"of the host is in group %d instead of %d, so packets from the container may have any source", have.Group, names.GuardedGroup)
	}
	if e.Routed && have.Bridged {
		differs(func(b *rtnl.Batch) { b.LeaveBridge(index) }, "of the host has become a port of a bridge, which gets its packets")
	}
	return list, nil
}

// peer returns the state of the other end of a link of the host; nil if there is none, or in a sandbox, whose link the host's
// is compared with.
func (v *View) peer(name string) (*rtnl.LinkState, error) {
	if v.other == nil || v.Kernel == nil || name == "" {
		return nil, nil
	}
	return v.other.link(name)
}

// compareMissing tells that the end is missing. If another program has renamed it, that can be put right.
func (e *End) compareMissing(v *View) ([]Difference, error) {
	d := Difference{Finding: v.lost(e.Name)}
	index, err := e.renamed(v)
	if index != 0 {
		d.Put = func(b *rtnl.Batch) { b.SetName(index, e.Name) }
	}
	return []Difference{d}, err
}

// renamed returns the index of the end under another name; 0 if there is none.
func (e *End) renamed(v *View) (index int, err error) {
	if v.other == nil {
		return 0, nil
	}
	if v.Kernel != nil {
		end, err := Renamed(v.Kernel, v.other.sandbox, e.Alias)
		if end == nil || err != nil {
			return 0, err
		}
		return end.Index, nil
	}
	end, err := v.other.link(e.Peer)
	if end == nil || err != nil || end.Peer <= 0 {
		return 0, err
	}
	inside, err := v.sandbox.LinkStateAt(end.Peer)
	if rtnl.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || inside.Kind != "veth" || inside.Peer != end.Index {
		return 0, err
	}
	return inside.Index, nil
}

// Renamed returns the link of the host with an alias whose other end is in a sandbox; nil if there is none. Unlike a
// search among the links of the host, it does not take longer with more allocations.
func Renamed(host *rtnl.Host, sandbox *rtnl.Sandbox, alias string) (*rtnl.LinkState, error) {
	links, err := sandbox.LinkStates()
	if err != nil || alias == "" {
		return nil, err
	}
	for _, inside := range links {
		end, err := OtherEnd(host, inside)
		if err != nil {
			return nil, err
		}
		if end != nil && end.Alias == alias {
			return end, nil
		}
	}
	return nil, nil
}

// OtherEnd returns the link of the host that is the other end of a link of a sandbox; nil if there is none.
func OtherEnd(host *rtnl.Host, inside *rtnl.LinkState) (*rtnl.LinkState, error) {
	if inside.Kind != "veth" || inside.Peer <= 0 {
		return nil, nil
	}
	end, err := host.LinkStateAt(inside.Peer)
	if rtnl.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the other end of interface %q of the sandbox: %w", inside.Name, err)
	}
	// The other end may be in a third namespace. Then the index belongs to another link here.
	if end.Kind != "veth" || end.Peer != inside.Index {
		return nil, nil
	}
	return end, nil
}

// AnswersARP is that a link answers ARP requests for its addresses. InSubnet tells whether these come from the subnet of the
// address.
type AnswersARP struct {
	Link     string
	InSubnet bool
}

// Compare looks at arp_ignore of the link and, on the host, at that of all links, which is the administrator's.
func (a *AnswersARP) Compare(_ context.Context, v *View) ([]Difference, error) {
	link, err := v.link(a.Link)
	if link == nil || err != nil {
		return nil, err
	}
	name := "net/ipv4/conf/" + a.Link + "/arp_ignore"
	switch {
	case a.ignores(link.ARPIgnore) && v.Kernel != nil:
		return []Difference{{
			Finding: fmt.Errorf("interface %q of the host answers no ARP requests of the container: net.ipv4.conf.%s.arp_ignore is %d", a.Link, a.Link, link.ARPIgnore),
			Do:      func() error { return rtnl.SetSysctl(name, "0") },
		}}, nil
	case a.ignores(link.ARPIgnore):
		return []Difference{{
			Finding: fmt.Errorf("interface %q answers no ARP requests: net.ipv4.conf.%s.arp_ignore is %d", a.Link, a.Link, link.ARPIgnore),
			Do:      func() error { return rtnl.SetSysctl(name, "0") },
		}}, nil
	case v.Kernel == nil:
		return nil, nil
	}
	return a.compareAll()
}

func (a *AnswersARP) compareAll() ([]Difference, error) {
	text, err := rtnl.Sysctl("net/ipv4/conf/all/arp_ignore")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value, err := strconv.Atoi(text)
	if err != nil || !a.ignores(value) {
		return nil, err
	}
	return []Difference{{Finding: fmt.Errorf("the host answers no ARP requests of the container: net.ipv4.conf.all.arp_ignore is %d; set it to 0 or 1", value)}}, nil
}

// ignores reports whether the kernel leaves ARP requests unanswered with a value of arp_ignore: 8 is for all addresses, and 2 for
// those in whose subnet the sender is not. ip-sysctl.rst of the kernel has the values.
func (a *AnswersARP) ignores(value int) bool { return value == 8 || value == 2 && !a.InSubnet }

// Up is that packets can pass a link: it is up, and finds out MACs.
type Up struct {
	Link string
	// Notifies sets arp_notify of a link that is brought up: see rtnl.Batch.SetUp.
	Notifies bool
	// Port: it is one of a bridge, which itself resolves nothing.
	Port bool
}

// Compare implements Object.
func (u *Up) Compare(_ context.Context, v *View) (list []Difference, err error) {
	index, works, err := v.state(u.Link)
	if rtnl.IsNotFound(err) {
		return []Difference{{Finding: v.lost(u.Link)}}, nil
	}
	if err != nil {
		return nil, err
	}
	if !works.up {
		list = append(list, Difference{Finding: fmt.Errorf("interface %q is down", u.Link), Put: func(b *rtnl.Batch) {
			if u.Notifies {
				b.SetUp(index)
			} else {
				b.BringUp(index)
			}
		}})
	}
	if !works.arp && !u.Port {
		what := fmt.Errorf("interface %q has ARP switched off", u.Link)
		if v.Kernel != nil {
			what = fmt.Errorf("interface %q of the host has ARP switched off", u.Link)
		}
		list = append(list, Difference{Finding: what, Put: func(b *rtnl.Batch) { b.EnableARP(index) }})
	}
	return list, nil
}
