package ruleset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

const (
	finACK   = 0x11
	onlyACK  = 0x10
	onlyRST  = 0x04
	late     = "LATE"
	theEnd   = "END"
	latePort = 90
)

// segment returns a TCP segment with a text.
func segment(from, to netip.AddrPort, flags byte, sequence uint32, text string) []byte {
	h := make([]byte, 20, 20+len(text))
	binary.BigEndian.PutUint16(h, from.Port())
	binary.BigEndian.PutUint16(h[2:], to.Port())
	binary.BigEndian.PutUint32(h[4:], sequence)
	h[12], h[13] = 5<<4, flags
	binary.BigEndian.PutUint16(h[14:], 1024)
	h = append(h, text...)
	var sum uint32
	for _, part := range [][]byte{from.Addr().AsSlice(), to.Addr().AsSlice(), {0, unix.IPPROTO_TCP, byte(len(h) >> 8), byte(len(h))}, h} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(part[i]) << 8
			if i+1 < len(part) {
				sum += uint32(part[i+1])
			}
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(h[16:], ^uint16(sum))
	return h
}

// sendSegments sends segments from a sandbox, half of the sequence numbers apart: one of two at least is above the
// window of a connection.
func (n *testNet) sendSegments(s *sandbox.Sandbox, from, to netip.AddrPort, flags byte, text string) {
	n.t.Helper()
	family, target := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		target = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	} else {
		family = unix.AF_INET6
	}
	require.NoError(n.t, s.Do(func() error {
		raw, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(raw)
		return errors.Join(
			unix.Sendto(raw, segment(from, to, flags, 1, text), 0, target),
			unix.Sendto(raw, segment(from, to, flags, 1<<31, text), 0, target))
	}))
}

// arrivals receives what arrives at a link of a sandbox.
type arrivals struct {
	t  testing.TB
	fd int
}

func (n *testNet) arrivals(s *sandbox.Sandbox) *arrivals {
	n.t.Helper()
	a := &arrivals{t: n.t, fd: -1}
	require.NoError(n.t, s.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		if a.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(a.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}),
			unix.Bind(a.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
	}))
	n.t.Cleanup(func() { unix.Close(a.fd) })
	return a
}

// untilEnd returns the late segments and the RSTs that have arrived before a segment with the text theEnd, each once.
func (a *arrivals) untilEnd() (seen []string) {
	a.t.Helper()
	note := func(text string) {
		for _, one := range seen {
			if one == text {
				return
			}
		}
		seen = append(seen, text)
	}
	buf := make([]byte, 2000)
	for {
		size, err := unix.Read(a.fd, buf)
		require.NoError(a.t, err)
		p := buf[:size]
		header, protocol, from := 40, 6, netip.Addr{}
		switch {
		case len(p) >= 20 && p[0]>>4 == 4:
			header, protocol = int(p[0]&15)*4, 9
			from, _ = netip.AddrFromSlice(p[12:16])
		case len(p) >= 40 && p[0]>>4 == 6:
			from, _ = netip.AddrFromSlice(p[8:24])
		default:
			continue
		}
		if p[protocol] != unix.IPPROTO_TCP || len(p) < header+20 {
			continue
		}
		switch {
		case bytes.Contains(p[header:], []byte(theEnd)):
			return seen
		case bytes.Contains(p[header:], []byte(late)):
			note(fmt.Sprintf("segment from %s", from))
		case p[header+13]&onlyRST != 0:
			note(fmt.Sprintf("RST from %s", from))
		}
	}
}

// connect opens a connection from one sandbox to latePort of another one, by an address that leads there.
func (n *testNet) connect(from, to *sandbox.Sandbox, at netip.AddrPort) (client, server net.Conn) {
	n.t.Helper()
	var l net.Listener
	require.NoError(n.t, to.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprint(":", latePort)); return err }))
	defer l.Close()
	require.NoError(n.t, from.Do(func() (err error) { client, err = net.Dial("tcp", at.String()); return err }))
	server, err := l.Accept()
	require.NoError(n.t, err)
	n.t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func addresses(c net.Conn) (local, remote netip.AddrPort) {
	address := func(a net.Addr) netip.AddrPort {
		p := netip.MustParseAddrPort(a.String())
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return address(c.LocalAddr()), address(c.RemoteAddr())
}

// TestUntranslated: the kernel does not translate TCP segments outside of the window. They do not leave the host with
// the address of an allocation, neither those of a connection out of the host nor those of one to a host port, and
// the host does not answer them. Without the rules they do, and it does.
func TestUntranslated(t *testing.T) {
	for name, addr := range map[string]func(network, n int) netip.Prefix{"ip": addr4, "ip6": addr6} {
		t.Run(name, func(t *testing.T) {
			n := newNet(t)
			a, host, outside := addr(net0, 2), addr(wireNet, 1).Addr(), addr(wireNet, 2).Addr()
			published := func(snat SNAT) *Elements {
				return &Elements{Owner: owner("a"), Published: []Published{{a, snat}},
					Mappings: []Mapping{{Protocol: unix.IPPROTO_TCP, HostPort: 8090, To: netip.AddrPortFrom(a.Addr(), latePort)}}}
			}
			for _, c := range []struct {
				elements *Elements
				toHost   bool
				without  string
			}{
				{elements: &Elements{Owner: owner("a"), Masquerade: []netip.Prefix{a}}, without: fmt.Sprintf("segment from %s", a.Addr())},
				{elements: published(SNATLocal), without: fmt.Sprintf("segment from %s", a.Addr())},
				{elements: published(SNATNone), without: fmt.Sprintf("segment from %s", a.Addr())},
				{elements: published(SNATAll), toHost: true, without: fmt.Sprintf("RST from %s", addr(net0, 1).Addr())},
			} {
				require.NoError(t, n.Add(t.Context(), c.elements))
				var inA, other net.Conn
				if c.elements.Masquerade != nil {
					inA, other = n.connect(n.a, n.outside, netip.AddrPortFrom(outside, latePort))
				} else {
					other, inA = n.connect(n.outside, n.a, netip.AddrPortFrom(host, 8090))
				}
				writer, reader, seer, chain := inA, other, n.arrivals(n.outside), chainUntranslated
				if c.toHost {
					writer, reader, seer, chain = other, inA, n.arrivals(n.a), chainUntranslatedInput
				}
				local, remote := addresses(inA)
				seen := func() []string {
					n.sendSegments(n.a, local, remote, onlyACK, late)
					_, err := io.WriteString(writer, theEnd)
					require.NoError(t, err)
					return seer.untilEnd()
				}
				require.NotContains(t, seen(), c.without, "%+v", c.elements) // a retransmission is translated
				_, err := io.ReadFull(reader, make([]byte, len(theEnd)))
				require.NoError(t, err, "the connection goes on")
				nft(t, "flush", "chain", name, "allocnet", chain)
				require.Contains(t, seen(), c.without, "%+v", c.elements)
				require.NoError(t, n.Del(t.Context(), c.elements))
				require.NoError(t, n.Repair(t.Context()))
			}
		})
	}
}

// TestUntranslatedPasses: where nothing is translated, packets that connection tracking cannot classify pass, and so
// do those that it does not track.
func TestUntranslatedPasses(t *testing.T) {
	eachFamily(t, []string{"0", "1"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		a, c, outside := prefix(net0, 2), prefix(net1, 2), prefix(wireNet, 2)
		e := n.elements(SNATLocal)
		require.NoError(t, n.Add(t.Context(), e))
		passes := func(from *sandbox.Sandbox, source netip.Prefix, to *sandbox.Sandbox, destination netip.Prefix) bool {
			t.Helper()
			seer, end := n.arrivals(to), netip.AddrPortFrom(destination.Addr(), 91)
			n.sendSegments(from, netip.AddrPortFrom(source.Addr(), 90), end, finACK, late) // of no connection
			n.sendSegments(n.c, netip.AddrPortFrom(c.Addr(), 92), end, finACK, theEnd)
			return len(seer.untilEnd()) > 0
		}
		require.True(t, passes(n.c, c, n.outside, outside), "a network without translation")
		require.False(t, passes(n.a, a, n.outside, outside), "a masqueraded network")
		require.True(t, passes(n.a, a, n.b, prefix(net0, 3)), "within one network")
		nftRaw(t, a, true)
		require.True(t, passes(n.a, a, n.outside, outside), "not tracked")
		nftRaw(t, a, false)
		require.NoError(t, n.Del(t.Context(), e))
		e.Published, e.Mappings, e.Exempt = nil, nil, []Exemption{{a, outside}}
		require.NoError(t, n.Add(t.Context(), e))
		require.True(t, passes(n.a, a, n.outside, outside), "to an exempt network")
	})
}

// nftRaw makes the kernel track no packets from an address, or removes that again.
func nftRaw(t testing.TB, source netip.Prefix, on bool) {
	t.Helper()
	family := map[bool]string{true: "ip", false: "ip6"}[source.Addr().Is4()]
	if !on {
		nft(t, "delete", "table", family, "raw_test")
		return
	}
	nft(t, fmt.Sprintf("table %s raw_test { chain prerouting { type filter hook prerouting priority -300; %s saddr %s notrack; }; }", family, family, source.Addr()))
}
