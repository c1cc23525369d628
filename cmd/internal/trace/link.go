package trace

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// hostLink looks at the host's interfaces of the allocation.
func (f *tracer) hostLink(context.Context) error {
	const name = "link"
	_, route, _ := routeTo(f.Address) // the step on it has reported an error
	for _, itf := range f.Record.Status.Interfaces {
		if itf.Sandbox != "" {
			continue
		}
		link, err := f.host.LinkByName(itf.Name)
		switch {
		case rtnl.IsNotFound(err):
			return f.linkGone(itf.Name)
		case err != nil:
			return err
		case link.Attrs().Flags&net.FlagUp == 0:
			return f.ends(name, "ip link set "+itf.Name+" up, or allocnet repair", "%s is down", itf.Name)
		case link.Attrs().RawFlags&unix.IFF_RUNNING == 0:
			return f.ends(name, "bring up the interface inside of the namespace", "%s has no carrier: its other end is down", itf.Name)
		}
		if itf.Name == route {
			if err := f.detected(name, link, netip.Addr{}); err != nil {
				return err
			}
		}
		f.add(name, OK, "", "%s is up", itf.Name)
	}
	return nil
}

// hostLinks returns the interfaces on the host of the network that has the address. A bridge comes before the
// port of the allocation.
func (f *tracer) hostLinks() []configurator.Interface {
	network, _ := f.network()
	return slices.DeleteFunc(slices.Clone(f.Record.Status.Interfaces), func(i configurator.Interface) bool {
		return i.Sandbox != "" || i.Network != network
	})
}

// goneLink returns the name of an interface on the way that does not exist; "" if all do.
func (f *tracer) goneLink() (string, error) {
	for _, itf := range f.hostLinks() {
		if _, err := f.host.LinkByName(itf.Name); rtnl.IsNotFound(err) {
			return itf.Name, nil
		} else if err != nil {
			return "", err
		}
	}
	return "", nil
}

// linkGone ends the path at an interface that does not exist. Its routes were deleted with it.
func (f *tracer) linkGone(gone string) error {
	next := "allocnet setup sets the allocation up again"
	if links := f.hostLinks(); len(links) > 1 && links[0].Name == gone {
		next = "allocnet repair restores it"
	}
	return f.ends("link", next, "%s is gone, and its routes with it", gone)
}
