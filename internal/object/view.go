package object

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/state/switches"
)

// Host is what views of the host need.
type Host struct {
	Kernel   *rtnl.Host
	Switches *switches.Store // records the switches that are changed
	Bridges  *bridges.Store  // records the bridges that are made
	// Once makes a check only if it has not succeeded recently, since Forget.
	Once   func(key string, check func() error) error
	Forget func()
}

// View is a network namespace as one operation sees it. What it has read, it keeps until something is changed by it.
// It is not safe for concurrent use.
type View struct {
	netns   netns
	Host                               // without a Kernel in a sandbox
	sandbox *rtnl.Sandbox              // nil on the host
	other   *View                      // with the other ends of links; nil if that is not known
	links   map[string]*rtnl.LinkState // nil for a link that does not exist
	missing map[string]bool            // links of which a finding has told that they are missing
	made    bool                       // the links are new, and nothing else is there
}

// netns is a network namespace: rtnl.Host or rtnl.Sandbox.
type netns interface {
	LinkState(name string) (*rtnl.LinkState, error)
	LinkStateAt(index int) (*rtnl.LinkState, error)
	Addresses(index int) ([]netlink.Addr, error)
	AwaitReception(ctx context.Context, index int, ips ...net.IP) error
	Apply(*rtnl.Batch) error
	Do(func() error) error
}

// View returns a view of the host.
func (h Host) View() *View {
	return &View{netns: h.Kernel, Host: h, links: map[string]*rtnl.LinkState{}}
}

// OfSandbox returns a view of a sandbox.
func OfSandbox(sandbox *rtnl.Sandbox) *View {
	return &View{netns: sandbox, sandbox: sandbox, links: map[string]*rtnl.LinkState{}}
}

// Connect tells two views that links lead from one to the other.
func Connect(a, b *View) { a.other, b.other = b, a }

// Made tells the view of a link that an ADD has just made, and that has neither addresses nor routes.
func (v *View) Made(link *rtnl.LinkState) {
	v.links[link.Name], v.made = link, true
}

// Index returns the index of a link.
func (v *View) Index(name string) (int, error) {
	index, _, err := v.state(name)
	return index, err
}

// Link returns the state of a link. rtnl.IsNotFound reports whether the error means that it does not exist.
func (v *View) Link(name string) (*rtnl.LinkState, error) {
	l, err := v.link(name)
	if l == nil && err == nil {
		err = v.lost(name)
	}
	return l, err
}

// link returns the state of a link; nil if it does not exist.
func (v *View) link(name string) (*rtnl.LinkState, error) {
	if l, known := v.links[name]; known {
		return l, nil
	}
	l, err := v.netns.LinkState(name)
	if err != nil && !rtnl.IsNotFound(err) {
		return nil, err
	}
	v.links[name] = l
	return l, nil
}

// state returns the index of a link and whether packets can pass it, as link does. On the host it asks for no more, if it
// does not know more already: to describe a link takes the kernel longer on a host with many network namespaces.
func (v *View) state(name string) (index int, works works, err error) {
	if l, known := v.links[name]; v.Kernel != nil && !known {
		index, flags, err := v.Kernel.State(name)
		works.up, works.arp = flags&unix.IFF_UP != 0, flags&unix.IFF_NOARP == 0
		return index, works, err
	} else if known && l == nil {
		return 0, works, unix.ENODEV
	}
	l, err := v.link(name)
	switch {
	case err != nil:
		return 0, works, err
	case l == nil:
		return 0, works, unix.ENODEV
	}
	works.up, works.arp = l.Up, !l.NoARP
	return l.Index, works, nil
}

// works tells whether a link is up, and whether it resolves addresses.
type works struct{ up, arp bool }

// present is Index for the objects of a link. ok is false if it does not exist, of which End or Up tells.
func (v *View) present(name string) (index int, ok bool, err error) {
	index, err = v.Index(name)
	if rtnl.IsNotFound(err) {
		return 0, false, nil
	}
	return index, err == nil, err
}

// lacksIPv6 reports whether the kernel has no IPv6 on a link, so that no address or route can be added.
func (v *View) lacksIPv6(name string) bool {
	link, err := v.link(name)
	return err == nil && link != nil && (SmallMTU(link) != nil || link.NoIPv6)
}

// lost returns the finding that a link is missing; nil if another one has told of it.
func (v *View) lost(name string) error {
	if v.missing[name] {
		return nil
	}
	if v.missing != nil {
		v.missing[name] = true
	}
	return fmt.Errorf("find interface %q %s: %w", name, v.where(), unix.ENODEV)
}

func (v *View) where() string {
	if v.Kernel != nil {
		return "of the host"
	}
	return "in the sandbox"
}

// change makes the changes of differences. All of them are tried, unless a Settle fails, after which stop is true.
func (v *View) change(ctx context.Context, differences []Difference) (stop bool, err error) {
	var errs []error
	var batch rtnl.Batch
	for _, d := range differences {
		if d.Do != nil {
			errs = append(errs, v.netns.Do(d.Do))
		}
		if d.Put != nil {
			d.Put(&batch)
		}
		if d.Settle == nil {
			continue
		}
		err := v.netns.Apply(&batch)
		batch = rtnl.Batch{}
		if errs = append(errs, err); err != nil {
			continue
		}
		if err := d.Settle(ctx); err != nil {
			return true, errors.Join(append(errs, err)...)
		}
	}
	return false, errors.Join(append(errs, v.netns.Apply(&batch))...)
}

func (v *View) forget() { clear(v.links); v.made = false }
