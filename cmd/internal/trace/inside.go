package trace

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// within runs a function in the network namespace of the allocation.
func (f *tracer) within(do func() error) error {
	s, err := sandbox.Open(f.Record.Netns)
	if err != nil {
		return f.namespaceGone(err)
	}
	defer s.Close()
	return s.Do(do)
}

func (f *tracer) namespaceGone(err error) error {
	return f.ends("namespace", "allocnet teardown "+f.Record.ID, "%s: %v", f.Record.Netns, err)
}

// inside looks for the address in the network namespace.
func (f *tracer) inside(context.Context) error {
	const name = "interface inside"
	return f.within(func() error {
		interfaces, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, itf := range interfaces {
			addrs, err := itf.Addrs()
			if err != nil {
				return err
			}
			has := slices.ContainsFunc(addrs, func(a net.Addr) bool {
				p, err := netip.ParsePrefix(a.String())
				return err == nil && p.Addr().Unmap() == f.Address
			})
			switch {
			case !has:
			case itf.Flags&net.FlagUp == 0:
				return f.ends(name, "ip -n NAME link set "+shellWord(itf.Name)+" up", "%s is down", itf.Name)
			default:
				link, err := netlink.LinkByIndex(itf.Index)
				if err != nil {
					return err
				}
				if err := f.detected(name, link, f.Address); err != nil {
					return err
				}
				f.add(name, OK, "", "%s has %s", itf.Name, f.Address)
				return nil
			}
		}
		return f.ends(name, "allocnet setup sets the allocation up again", "no interface in %s has %s", f.Record.Netns, f.Address)
	})
}

// listener looks for the process of the allocation.
func (f *tracer) listener(context.Context) error {
	const name = "listener inside"
	if f.protocol == unix.IPPROTO_SCTP {
		f.add(name, Note, "", "sockets of SCTP are not listed")
		return nil
	}
	return f.within(func() error {
		found, err := f.listeners(f.path.To)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return f.ends(name, "start the server, or let it listen on all addresses rather than on the loopback",
				"nothing listens on %s port %d for %s", f.Mapping.Protocol, f.path.To.Port(), f.Address)
		}
		f.add(name, OK, "", "%s", describe(found[:1])[0].text)
		return nil
	})
}
