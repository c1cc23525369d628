package trace

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// hostLink looks at the host's interfaces of the allocation.
func (f *tracer) hostLink(context.Context) error {
	const name = "link"
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
		f.add(name, OK, "", "%s is up", itf.Name)
	}
	return nil
}
