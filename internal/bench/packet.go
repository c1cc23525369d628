package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// packetTitle names the time of a TCP connect through a host port.
func packetTitle(mappings int) string {
	if mappings == 1 {
		return "TCP connect, 1 mapping"
	}
	return fmt.Sprintf("TCP connect, %d other mappings", mappings)
}

// The addresses of the link between the host and the external machine.
var (
	wireHost    = netip.MustParsePrefix("192.0.2.1/24")
	wireOutside = netip.MustParsePrefix("192.0.2.2/24")
)

const wire = "wire0"

// packet measures the cost of a connection's first packet: the time of a TCP
// connect from outside, with no and with many other mappings.
func (b *bench) packet(ctx context.Context) error {
	slots, err := b.slots(ctx, 1+crowdSize)
	if err != nil {
		return err
	}
	outside, err := connectOutside()
	if err != nil {
		return fmt.Errorf("connect the outside: %w", err)
	}
	many := map[string]samples{}
	one := map[string]samples{}
	for _, name := range []string{baselineName, nativeName, execName} {
		systems, err := b.openAll(ctx, b.size.kinds[0], false, name)
		if err != nil {
			return err
		}
		for _, sys := range inOrder(systems) {
			c := b.crowdOf(sys, slots)
			b.progress("connections by way of %s: 1 and %d mappings", name, c.mappings)
			m, err := b.packetOf(ctx, sys, slots[0], c, outside)
			if err != nil {
				return err
			}
			one[name], many[name] = m.one, m.many
		}
		if err := closeAll(ctx, systems); err != nil {
			return err
		}
	}
	for _, name := range order {
		if one[name] != nil {
			b.report.add(packetTitle(1), name, seconds, one[name])
		}
	}
	for _, name := range order {
		if many[name] != nil {
			b.report.add(packetTitle(b.size.mappingsOf(name)), name, seconds, many[name])
		}
	}
	return errors.Join(outside.Destroy())
}

// mappingsOf returns the number of other mappings for a system.
func (s *size) mappingsOf(system string) int {
	if system == execName {
		return s.slowBefore
	}
	return s.mappings
}

type packetSamples struct{ one, many samples }

// partsOf returns the number of parts in which connections with and without
// other mappings alternate. It is small for rules, which take seconds to add.
func (s *size) partsOf(c *crowd) int {
	if c.slow {
		return min(2, s.connectParts)
	}
	return s.connectParts
}

func (b *bench) packetOf(ctx context.Context, sys system, s *slot, c *crowd, outside *sandbox.Sandbox) (*packetSamples, error) {
	if err := sys.add(ctx, s); err != nil {
		return nil, err
	}
	l, err := listenIn(s)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	to := netip.AddrPortFrom(wireHost.Addr(), s.hostPort())
	m := &packetSamples{}
	parts := b.size.partsOf(c)
	n := max(1, b.size.connects/parts)
	for range parts {
		steps := []func() error{
			func() error { return m.one.connect(outside, to, n) },
			func() error { return c.gather(ctx) },
			func() error { return m.many.connect(outside, to, n) },
			func() error { return c.disperse(ctx) },
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return nil, err
			}
		}
	}
	return m, sys.del(ctx, s)
}

// listenIn accepts connections to an allocation and closes them, until the
// listener is closed.
func listenIn(s *slot) (l net.Listener, err error) {
	in, err := sandbox.Open(s.netns)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	err = in.Do(func() error {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", containerPort))
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				c.Close()
			}
		}
	}()
	return l, nil
}

// connect measures connects from a namespace. It first makes a tenth as many
// that are not counted.
func (s *samples) connect(from *sandbox.Sandbox, to netip.AddrPort, n int) error {
	address := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	return from.Do(func() error {
		for i := range n + n/10 {
			took, err := connectOnce(address)
			if err != nil {
				return fmt.Errorf("connect to %s: %w", to, err)
			}
			if i >= n/10 {
				s.took(took)
			}
		}
		return nil
	})
}

// connectOnce measures one connect. The connection ends with a reset, so that
// no state of it remains.
func connectOnce(to unix.Sockaddr) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	start := time.Now()
	err = unix.Connect(fd, to)
	return time.Since(start), err
}

// connectOutside creates an external machine and the link to it.
func connectOutside() (*sandbox.Sandbox, error) {
	outside, err := sandbox.Create("outside")
	if err != nil {
		return nil, err
	}
	err = outside.With(func(fd int) error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: wire}, PeerName: "eth0", PeerNamespace: netlink.NsFd(fd),
		})
	})
	if err == nil {
		err = errors.Join(configure(wire, wireHost), outside.Do(func() error { return configure("eth0", wireOutside) }))
	}
	if err != nil {
		return nil, errors.Join(err, outside.Destroy())
	}
	return outside, nil
}

// configure assigns an address to a link and brings it up.
func configure(name string, p netip.Prefix) error {
	s, err := openSocket(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	index, _, err := s.link(name)
	if err == nil {
		err = s.do(addrMessage(index, p, 0), upMessage(index))
	}
	return errors.Join(err, s.close())
}
