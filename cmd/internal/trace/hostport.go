package trace

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostports"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
)

// hostAddress returns the address of the host at which the port is published, or the
// address from which the host sends to the allocation's network.
func (f *tracer) hostAddress() netip.Addr {
	if host, err := netip.ParseAddr(f.Mapping.HostIP); err == nil && !host.IsUnspecified() {
		return host.Unmap()
	}
	to := f.Address
	if f.From.IsValid() {
		to = f.From // the address at which that client knows the host
	}
	if route, _, err := routeTo(to); err == nil && route.Src != nil {
		if a, ok := netip.AddrFromSlice(route.Src); ok {
			return a.Unmap()
		}
	}
	if f.Address.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// mapping looks the host port up in allocnet's tables.
func (f *tracer) mapping(ctx context.Context) error {
	const name = "host port"
	repair := "allocnet repair restores it; allocnet events shows what removes it"
	return ruleset.Lend(func(r *ruleset.Ruleset) error {
		m, owner, err := r.Destination(ctx, f.path.Host.Addr(), f.protocol, f.path.Host.Port())
		switch {
		case err != nil:
			return err
		case m == nil && f.Record.Engine != configurator.EngineNative:
			f.add(name, Note, "", "published by the rules of plugin binaries")
		case m == nil:
			return f.ends(name, repair, "allocnet's nftables tables do not have %s port %d", f.Mapping.Protocol, f.Mapping.HostPort)
		case m.To != f.path.To && f.waitsFor() != nil:
			w := f.waitsFor()
			return f.ends(name, fmt.Sprintf("nothing: the port leads here as soon as %q is torn down", w.ID), "%s", w)
		case m.To != f.path.To:
			return f.ends(name, "allocnet history "+owner.ID, "it leads to %s of %s", m.To, ownerText(owner))
		default:
			f.add(name, OK, "", "nftables redirects %s to %s", f.path.Host, m.To)
		}
		return nil
	})
}

// waitsFor returns the allocation that has the port if that of the path waits for it, nil if it does not.
func (f *tracer) waitsFor() *configurator.PortWait {
	for i := range f.Record.Waiting {
		if f.Record.Waiting[i].Mapping == f.Mapping {
			return &f.Record.Waiting[i]
		}
	}
	return nil
}

func ownerText(o names.Owner) string {
	return fmt.Sprintf("container %s in network %s", o.ID, o.Network)
}

// process looks for processes of the host on the same port, which get no packets, other than
// the one with which the runtime of the container reserves the port.
func (f *tracer) process(context.Context) error {
	found, err := f.listeners(f.path.Host)
	if err != nil {
		return err
	}
	reserved := hostports.FindReservations(found)
	for _, l := range describe(reserved.Others(found, cmp.Or(f.Record.ContainerID, f.Record.ID))) {
		next := "let it listen on another port: the allocation gets the packets"
		if container := reserved[l.inode]; container != "" {
			l.text += fmt.Sprintf(" for container %s", container)
			next = "publish another host port of one of the two containers: the allocation gets the packets"
		}
		f.add("process of the host", Note, next, "%s", l.text)
	}
	return nil
}

// listeners returns what listens on a port in the network namespace of the calling thread.
func (f *tracer) listeners(at netip.AddrPort) ([]sockdiag.Listener, error) {
	if f.protocol == unix.IPPROTO_SCTP {
		return nil, nil
	}
	found, err := sockdiag.Look(sockdiag.Ports{Protocol: f.protocol, Numbers: []uint16{at.Port()}, Only6: at.Addr().Is6()})
	return slices.DeleteFunc(found, func(l sockdiag.Listener) bool { return !l.Takes(at.Addr()) }), err
}

// described is a listener in words.
type described struct {
	inode uint32
	text  string
}

// describe names the processes of host ports.
func describe(found []sockdiag.Listener) (list []described) {
	var inodes []uint32
	for _, l := range found {
		inodes = append(inodes, l.Inode)
	}
	processes := sockdiag.Processes(inodes...)
	for _, l := range found {
		text := "a process"
		if p, ok := processes[l.Inode]; ok {
			text = fmt.Sprintf("%s (process %d)", p.Name, p.PID)
		}
		list = append(list, described{l.Inode, fmt.Sprintf("%s listens on %s", text, l.Address)})
	}
	return list
}
