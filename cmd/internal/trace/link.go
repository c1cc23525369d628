package trace

import (
	"context"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

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
			return f.ends(name, "allocnet setup sets the allocation up again", "%s is gone", itf.Name)
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
