package conntrack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

const (
	tcp  = unix.IPPROTO_TCP
	udp  = unix.IPPROTO_UDP
	sctp = unix.IPPROTO_SCTP
	v4   = unix.AF_INET
	v6   = unix.AF_INET6
)

var (
	ip4   = netip.MustParseAddr
	anyIP = netip.Addr{}
)

// flow is an entry: protocol, source, destination, source of the replies; and
// its number.
type flow struct {
	protocol         uint8
	from, to, served string
}

var flows = []flow{
	0:  {udp, "192.0.2.1:1", "127.0.0.1:5353", "127.0.0.1:5353"},
	1:  {udp, "192.0.2.1:2", "127.0.0.1:5353", "10.77.0.5:53"},
	2:  {udp, "192.0.2.1:3", "127.0.0.3:5353", "127.0.0.3:5353"},
	3:  {udp, "10.77.0.5:4", "192.0.2.9:5353", "192.0.2.9:5353"}, // forwarded
	4:  {udp, "192.0.2.1:5", "127.0.0.1:53", "127.0.0.1:53"},
	5:  {tcp, "192.0.2.1:6", "127.0.0.1:5353", "10.77.0.5:53"},
	6:  {tcp, "192.0.2.1:7", "127.0.0.1:8080", "10.77.0.6:80"},
	7:  {sctp, "192.0.2.1:8", "127.0.0.1:5353", "10.77.0.6:53"},
	8:  {sctp, "192.0.2.1:9", "127.0.0.1:53", "10.77.0.6:53"},
	9:  {udp, "[2001:db8::1]:1", "[::1]:5353", "[fd00:77::5]:53"},
	10: {udp, "[2001:db8::1]:2", "[2001:db8::9]:5353", "[2001:db8::9]:5353"}, // forwarded
	11: {tcp, "[fd00:77::5]:3", "[2001:db8::9]:443", "[2001:db8::9]:443"},
	12: {udp, "[2001:db8::1]:4", "[::1]:53", "[::1]:53"},
}

func port(protocol uint8, number uint16, host netip.Addr) Port {
	return Port{Protocol: protocol, Number: number, HostIP: host}
}

var flushPortsTests = []struct {
	name   string
	family uint8
	ports  []Port
	gone   []int
}{
	{"none", v4, nil, nil},
	{"everywhere", v4, []Port{port(udp, 5353, anyIP)}, []int{0, 1, 2}},
	{"unspecified", v4, []Port{port(udp, 5353, ip4("0.0.0.0"))}, []int{0, 1, 2}},
	{"one address", v4, []Port{port(udp, 5353, ip4("127.0.0.3"))}, []int{2}},
	{"address that is not the host's", v4, []Port{port(udp, 5353, ip4("192.0.2.9"))}, []int{3}},
	{"several", v4, []Port{port(udp, 5353, anyIP), port(udp, 53, anyIP)}, []int{0, 1, 2, 4}},
	{"several of one address", v4, []Port{port(udp, 5353, ip4("127.0.0.1")), port(udp, 53, ip4("127.0.0.1"))}, []int{0, 1, 4}},
	{"tcp", v4, []Port{port(tcp, 5353, anyIP)}, []int{5}},
	{"both", v4, []Port{port(tcp, 5353, anyIP), port(udp, 5353, anyIP)}, []int{0, 1, 2, 5}},
	{"sctp", v4, []Port{port(sctp, 5353, anyIP)}, []int{7}},
	{"sctp of one address", v4, []Port{port(sctp, 5353, ip4("127.0.0.1"))}, []int{7}},
	{"sctp and udp", v4, []Port{port(sctp, 5353, ip4("127.0.0.1")), port(udp, 53, ip4("127.0.0.1"))}, []int{4, 7}},
	{"nobody's", v4, []Port{port(udp, 9, anyIP)}, nil},
	{"v6 everywhere", v6, []Port{port(udp, 5353, anyIP)}, []int{9}},
	{"v6 one address", v6, []Port{port(udp, 5353, ip4("::1"))}, []int{9}},
	{"v6 address that is not there", v6, []Port{port(udp, 5353, ip4("fd00::99"))}, nil},
}

func TestFlushPorts(t *testing.T) {
	bothWays(t, func(t *testing.T, c *Conn) {
		for _, test := range flushPortsTests {
			t.Run(test.name, func(t *testing.T) {
				check := fill(t, c)
				require.NoError(t, c.FlushPorts(t.Context(), test.family, test.ports...))
				check(test.gone)
			})
		}
	})
}

func TestFlushAddress(t *testing.T) {
	tests := []struct {
		addr string
		gone []int
	}{
		{"10.77.0.5", []int{1, 3, 5}},
		{"10.77.0.6", []int{6, 7, 8}},
		{"10.77.0.7", nil},
		{"::ffff:10.77.0.5", []int{1, 3, 5}},
		{"fd00:77::5", []int{9, 11}},
		{"fd00:77::6", nil},
	}
	bothWays(t, func(t *testing.T, c *Conn) {
		for _, test := range tests {
			t.Run(test.addr, func(t *testing.T) {
				check := fill(t, c)
				require.NoError(t, c.FlushAddresses(t.Context(), netip.MustParseAddr(test.addr)))
				check(test.gone)
			})
		}
	})
}

// fill adds the flows. check fails unless exactly the given ones are gone.
func fill(t *testing.T, c *Conn) (check func(gone []int)) {
	t.Helper()
	var all []string
	flush(t)
	for _, f := range flows {
		all = append(all, track(t, f.protocol, f.from, f.to, f.served))
	}
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	require.Equal(t, sorted, tracked(t, c))
	return func(gone []int) {
		t.Helper()
		var want []string
		for i, text := range all {
			if !slices.Contains(gone, i) {
				want = append(want, text)
			}
		}
		slices.Sort(want)
		require.Equal(t, want, tracked(t, c))
	}
}

// TestFlushRealTraffic: entries of real datagrams are flushed, also of refused
// ones.
func TestFlushRealTraffic(t *testing.T) {
	bothWays(t, func(t *testing.T, c *Conn) {
		nft(t, "table ip conntracktest { chain c { type filter hook output priority 0; ct state new accept; }; }")
		nft(t, "table ip6 conntracktest { chain c { type filter hook output priority 0; ct state new accept; }; }")
		defer nft(t, "delete table ip conntracktest; delete table ip6 conntracktest")
		server, err := net.ListenPacket("udp4", "127.0.0.1:0")
		require.NoError(t, err)
		defer server.Close()
		number := uint16(server.LocalAddr().(*net.UDPAddr).Port)
		send(t, "udp", server.LocalAddr().String())
		send(t, "udp", "127.0.0.1:9")
		send(t, "udp", "[::1]:9")
		require.Len(t, tracked(t, c), 3)

		require.NoError(t, c.FlushPorts(t.Context(), v4, port(udp, number, netip.MustParseAddr("127.0.0.1"))))
		require.Equal(t, []string{"17 127.0.0.1 127.0.0.1:9 by 127.0.0.1", "17 ::1 [::1]:9 by ::1"}, tracked(t, c))
		require.NoError(t, c.FlushPorts(t.Context(), v4, port(udp, 9, netip.Addr{})))
		require.Equal(t, []string{"17 ::1 [::1]:9 by ::1"}, tracked(t, c))
		require.NoError(t, c.FlushPorts(t.Context(), v6, port(udp, 9, netip.Addr{})))
		require.Empty(t, tracked(t, c))
	})
}

// TestNothingTracked: if nothing is tracked, no request is sent.
func TestNothingTracked(t *testing.T) {
	c := opened(t, true)
	require.Zero(t, c.count())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, c.FlushPorts(ended, v4, port(udp, 9, anyIP)))
	require.NoError(t, c.FlushAddresses(ended, ip4("10.77.0.5")))

	track(t, udp, "192.0.2.1:1", "127.0.0.1:9", "10.77.0.5:9")
	require.Equal(t, 1, c.count())
	require.ErrorIs(t, c.FlushPorts(ended, v4, port(udp, 9, anyIP)), context.Canceled)
	require.ErrorIs(t, c.FlushAddresses(ended, ip4("10.77.0.5")), context.Canceled)
}

// TestOlderKernelsRefuse: a kernel that does not support filters in deletions
// must refuse the request, and not delete everything.
func TestOlderKernelsRefuse(t *testing.T) {
	c := opened(t, true)
	for _, f := range []filter{
		{family: v4, answers: ip4("10.77.0.5")},
		{family: v4, source: ip4("192.0.2.1")},
		{family: v4, protocol: udp, port: 5353, destination: ip4("127.0.0.1")},
	} {
		check := fill(t, c)
		require.True(t, f.exact())
		var whole, older sock.Requests
		f.put(&whole)
		var last uint16
		sock.EachAttribute(whole.Data(), func(kind uint16, value []byte) {
			if last = kind; kind != ctaFilter {
				older.Attribute(unix.NLA_F_NESTED|kind, value)
			}
		})
		require.EqualValues(t, ctaFilter, last)
		err := c.delete(t.Context(), v4, func(r *sock.Requests) { r.Append(older.Data()...) })
		require.True(t, isUnsupported(err), "%v", err)
		check(nil)
	}
}

func TestExact(t *testing.T) {
	for f, want := range map[filter]bool{
		{family: v4}:                                                   false,
		{family: v4, answers: ip4("10.0.0.1")}:                         true,
		{family: v4, source: ip4("10.0.0.1")}:                          true,
		{family: v4, protocol: udp, port: 1}:                           true,
		{family: v4, protocol: sctp, port: 1}:                          false,
		{family: v4, protocol: sctp, port: 1, destination: ip4("::1")}: false,
		{family: v6, answers: ip4("fd00::1")}:                          false,
		{family: v6, protocol: udp, port: 1, destination: ip4("::1")}:  false,
		{family: v6, protocol: udp, port: 1}:                           true,
	} {
		require.Equal(t, want, f.exact(), "%+v", f)
	}
}

// TestAbsent: the text is read only while it is short, and shows all possible
// matches.
func TestAbsent(t *testing.T) {
	privhost.RequireRoot(t) // other users cannot read it
	c := opened(t, true)
	fill(t, c)
	for number, want := range map[uint16]bool{5353: false, 535: true, 77: true} {
		require.Equal(t, want, c.absent([]Port{{Number: number}}), number)
		require.False(t, c.absent([]Port{{Number: number}, {Number: 53}}))
	}
	all := []netip.Addr{ip4("10.77.0.5"), ip4("10.77.0.50"), ip4("fd00:77::5"), ip4("fd00:77::6"), ip4("2001:db8::1")}
	there := []netip.Addr{all[0], all[2], all[4]}
	require.ElementsMatch(t, there, c.present(all))
	for i := range fewEntries {
		track(t, udp, fmt.Sprintf("198.51.%d.%d:1", i/250, i%250), "192.0.2.3:999", "192.0.2.3:999")
	}
	require.False(t, c.absent([]Port{{Number: 77}}))
	require.Equal(t, all, c.present(all), "too long to be read")
}

// TestFlushAddresses: addresses of both families, more than fit into one
// request, including absent, repeated and invalid ones.
func TestFlushAddresses(t *testing.T) {
	bothWays(t, func(t *testing.T, c *Conn) {
		check := fill(t, c)
		require.NoError(t, c.FlushAddresses(t.Context()))
		require.NoError(t, c.FlushAddresses(t.Context(), netip.Addr{}))
		check(nil)
		require.NoError(t, c.FlushAddresses(t.Context(), ip4("10.77.0.5"), ip4("10.77.0.6"), ip4("10.77.0.5"),
			ip4("::ffff:192.0.2.9"), ip4("10.77.0.7"), ip4("fd00:77::5"), ip4("fd00:77::6"), netip.Addr{}))
		check([]int{1, 3, 5, 6, 7, 8, 9, 11})
	})
}

func TestConcurrently(t *testing.T) {
	bothWays(t, func(t *testing.T, c *Conn) {
		check := fill(t, c)
		errs := make(chan error)
		for i := range 20 {
			go func() {
				if i%2 == 0 {
					errs <- c.FlushAddresses(t.Context(), ip4("10.77.0.5"))
				} else {
					errs <- c.FlushPorts(t.Context(), v4, port(udp, 5353, anyIP))
				}
			}()
		}
		for range 20 {
			require.NoError(t, <-errs)
		}
		check([]int{0, 1, 2, 3, 5})
	})
}

func TestPorts(t *testing.T) {
	bothWays(t, func(t *testing.T, c *Conn) {
		fill(t, c)
		for _, family := range []uint8{v4, v6} {
			var want []Port
			for _, f := range flows {
				to := netip.MustParseAddrPort(f.to)
				p := port(f.protocol, to.Port(), to.Addr())
				if to.Addr().Is4() == (family == v4) && !slices.Contains(want, p) {
					want = append(want, p)
				}
			}
			got, err := c.Ports(t.Context(), family)
			require.NoError(t, err)
			require.ElementsMatch(t, want, got)
		}
	})
}
