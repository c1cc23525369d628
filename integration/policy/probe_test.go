package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// flow is the first packet of a connection: what sends it, and whether it must be answered.
type flow struct {
	name     string
	netns    string // of the sender; "" is the host
	protocol string // tcp, udp, sctp or icmp, of the family of the address
	to       netip.AddrPort
	source   netip.Addr // of the sender; the kernel chooses it if it is not valid
	from     uint16     // the port of source; the kernel chooses it if it is 0
	want     bool       // whether it must be answered
	ends     ends

	fd       int
	port     uint16 // of the sender, for sctp
	answered bool
}

func (f *flow) String() string {
	return fmt.Sprintf("%s: %s from %q to %s", f.name, f.protocol, f.netns, f.to)
}

// graceTime is the wait for an answer that must not arrive, after all others have arrived.
const graceTime = 100 * time.Millisecond

// requireFlows sends all flows at once, and requires that exactly those are answered that must
// be. The answer to a wanted one may take long: what a neighbour lookup loses is sent again.
func (h *host) requireFlows(flows []*flow) {
	h.T.Helper()
	require.Empty(h.T, h.differences(flows))
}

// differences sends all flows at once, and returns those whose outcome is not the wanted one.
func (h *host) differences(flows []*flow) (list []string) {
	h.T.Helper()
	h.open(flows)
	defer closeFlows(flows)
	awaitAnswers(h.T, flows)
	for _, f := range flows {
		if f.answered != f.want {
			list = append(list, fmt.Sprintf("%s: answered %v, want %v", f, f.answered, f.want))
		}
	}
	return list
}

func closeFlows(flows []*flow) {
	for _, f := range flows {
		unix.Close(f.fd)
	}
}

// awaitAnswers waits for the answers of all flows.
func awaitAnswers(t testing.TB, flows []*flow) {
	t.Helper()
	begin, end := time.Now(), time.Now().Add(3*testbed.Timeout)
	resend := begin.Add(graceTime)
	for {
		waiting := 0
		var polled []unix.PollFd
		var of []*flow
		for _, f := range flows {
			if !f.answered {
				polled, of = append(polled, unix.PollFd{Fd: int32(f.fd), Events: f.events()}), append(of, f)
				if f.want {
					waiting++
				}
			}
		}
		now := time.Now()
		if len(polled) == 0 || now.After(end) || waiting == 0 && now.Sub(begin) > graceTime {
			return
		}
		if now.After(resend) {
			resend = now.Add(2 * graceTime)
			for _, f := range of {
				if f.want {
					f.sendAgain()
				}
			}
		}
		_, err := unix.Poll(polled, 20)
		if !errors.Is(err, unix.EINTR) {
			require.NoError(t, err)
		}
		for i, p := range polled {
			if p.Revents != 0 {
				of[i].answered = of[i].read()
			}
		}
	}
}

// open makes the socket and sends the first packet. The thread is in the sender's namespace.
func (f *flow) open() (err error) {
	family, kind, protocol := unix.AF_INET, unix.SOCK_STREAM, 0
	if f.to.Addr().Is6() {
		family = unix.AF_INET6
	}
	switch f.protocol {
	case "udp":
		kind = unix.SOCK_DGRAM
	case "sctp":
		kind, protocol, f.port = unix.SOCK_RAW, unix.IPPROTO_SCTP, sctpPort()
	case "icmp":
		kind, protocol = unix.SOCK_DGRAM, unix.IPPROTO_ICMP
		if family == unix.AF_INET6 {
			protocol = unix.IPPROTO_ICMPV6
		}
	}
	if f.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol); err != nil {
		return err
	}
	if f.source.IsValid() {
		if err := unix.Bind(f.fd, sockaddr(netip.AddrPortFrom(f.source, f.from))); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
	}
	if f.protocol == "icmp" {
		return f.send()
	}
	to := f.to
	if f.protocol == "sctp" {
		to = netip.AddrPortFrom(to.Addr(), 0) // a raw socket has no port
	}
	if err := unix.Connect(f.fd, sockaddr(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w", err)
	}
	if f.protocol != "tcp" {
		return f.send()
	}
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if zone := a.Addr().Zone(); zone != "" {
		i, err := net.InterfaceByName(zone)
		if err == nil {
			s.ZoneId = uint32(i.Index)
		}
	}
	return s
}

// send sends a datagram, the first packet of an association, or an echo
// request. A packet that the sender's own host drops is one without an answer.
func (f *flow) send() error {
	var err error
	switch {
	case f.protocol == "udp":
		_, err = unix.Write(f.fd, []byte("?"))
	case f.protocol == "sctp":
		_, err = unix.Write(f.fd, sctpPacket(chunkInit, f.port, f.to.Port(), 0))
	case f.to.Addr().Is4():
		err = unix.Sendto(f.fd, []byte{8, 0, 0, 0, 0, 0, 0, 1}, 0, sockaddr(f.to))
	default:
		err = unix.Sendto(f.fd, []byte{128, 0, 0, 0, 0, 0, 0, 1}, 0, sockaddr(f.to))
	}
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// sendAgain repeats a packet. The kernel repeats those of TCP.
func (f *flow) sendAgain() {
	if f.protocol != "tcp" {
		_ = f.send()
	}
}

func (f *flow) events() int16 {
	if f.protocol == "tcp" {
		return unix.POLLOUT
	}
	return unix.POLLIN
}

// read reports whether the flow was answered.
func (f *flow) read() bool {
	if f.protocol == "sctp" {
		return f.readInitAck()
	}
	if f.events() == unix.POLLIN {
		_, err := unix.Read(f.fd, make([]byte, 64))
		return err == nil
	}
	errno, err := unix.GetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	return err == nil && errno == 0
}

// answerAll answers on ports of a namespace over tcp, udp and sctp, and permits
// echo requests without privileges.
func answerAll(t testing.TB, netns string, ports ...int) {
	t.Helper()
	testbed.SetSysctls(t, netns, map[string]string{"net/ipv4/ping_group_range": "0 2147483647"})
	for _, port := range ports {
		testbed.Serve(t, netns, "tcp", port, "answer")
		testbed.Within(t, netns, func() error { return errors.Join(echoDatagrams(t, "udp4", port), echoDatagrams(t, "udp6", port)) })
	}
	testbed.Within(t, netns, func() error { return answerInits(t, ports...) })
}

// echoDatagrams answers datagrams, each from the address to which it was sent.
func echoDatagrams(t testing.TB, network string, port int) error {
	c, err := net.ListenUDP(network, &net.UDPAddr{Port: port})
	if err != nil {
		return err
	}
	t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if network == "udp6" {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) })
	if err := errors.Join(err, set); err != nil {
		return err
	}
	go func() {
		data, info := make([]byte, 64), make([]byte, 128)
		for {
			n, m, _, from, err := c.ReadMsgUDPAddrPort(data, info)
			if err != nil {
				return
			}
			_, _, _ = c.WriteMsgUDPAddrPort(data[:n], info[:m], from)
		}
	}()
	return nil
}

// probed are the protocols of flows.
var probed = []string{"tcp", "udp", "sctp", "icmp"}
