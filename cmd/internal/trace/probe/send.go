package probe

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sender sends the packets of a probe.
type sender interface {
	source() netip.AddrPort
	// send sends the packet with these flags of TCP. refused is the kernel's answer to a
	// packet that it does not send.
	send(flags uint8) (refused, err error)
	close() error
}

func newSender(o *Options, id identity) (sender, error) {
	if o.Link != "" {
		return newTap(o, id)
	}
	return newLocal(o, id)
}

// local sends from an address of the host, through a raw socket. A second socket keeps
// the port.
type local struct {
	o         *Options
	id        identity
	raw, port int
	from      netip.AddrPort
}

func newLocal(o *Options, id identity) (_ *local, err error) {
	l := &local{o: o, id: id, raw: -1, port: -1}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open sockets of the probe: %w", err), l.close())
		}
	}()
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if o.From.Is6() {
		family = unix.AF_INET6
	}
	if o.Protocol == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	if l.port, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if err := unix.Bind(l.port, sockaddr(netip.AddrPortFrom(o.From, 0))); err != nil {
		return nil, fmt.Errorf("bind to %s: %w", o.From, err)
	}
	name, err := unix.Getsockname(l.port)
	if err != nil {
		return nil, err
	}
	l.from = netip.AddrPortFrom(o.From, portOf(name))
	if l.raw, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(o.Protocol)); err != nil {
		return nil, err
	}
	return l, unix.Bind(l.raw, sockaddr(netip.AddrPortFrom(o.From, 0)))
}

func (l *local) source() netip.AddrPort { return l.from }

func (l *local) send(flags uint8) (refused, err error) {
	to := netip.AddrPortFrom(l.o.Host.Addr(), 0) // raw sockets of IPv6 take no other port
	err = unix.Sendto(l.raw, l.id.segment(l.from, l.o.Host, flags), 0, sockaddr(to))
	if errors.Is(err, unix.EPERM) { // a chain dropped it, which the trace shows
		return nil, nil
	}
	return err, nil
}

func (l *local) close() error {
	var errs []error
	for _, fd := range []int{l.raw, l.port} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func portOf(a unix.Sockaddr) uint16 {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port)
	case *unix.SockaddrInet6:
		return uint16(a.Port)
	}
	return 0
}
