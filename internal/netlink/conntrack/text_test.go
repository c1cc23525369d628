package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// TestText: the text of the entries of a family is what the kernel lists, as long as they are few.
func TestText(t *testing.T) {
	privhost.RequireRoot(t, "nft") // other users cannot read it
	for _, some := range [][]flow{nil, flows[:4], flows[9:], {flows[4], flows[7], flows[10]}} {
		c := opened(t, true)
		for _, f := range some {
			testhost.Track(t, f.protocol, f.from, f.to, f.served)
		}
		requireTextLikeList(t, c, len(some))
	}
	t.Run("real traffic", func(t *testing.T) {
		c := opened(t, true)
		for _, family := range []string{"ip", "ip6"} {
			nft(t, "table "+family+" texttest { chain c { type filter hook output priority 0; ct state new ct mark set 0xa110c0de accept; }; }")
			defer nft(t, "delete table "+family+" texttest")
		}
		send(t, "udp", "127.0.0.1:9")
		send(t, "udp", "[::1]:9")
		conn, err := net.Dial("ip4:icmp", "127.0.0.1")
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}) // an echo request
		require.NoError(t, err)
		requireTextLikeList(t, c, 3)
		for _, family := range []uint8{v4, v6} {
			require.NoError(t, c.DeleteMatching(t.Context(), family, func(e Entry) bool { return e.Protocol != udp }))
		}
		require.Equal(t, []string{"17 127.0.0.1 127.0.0.1:9 by 127.0.0.1", "17 ::1 [::1]:9 by ::1"}, tracked(t, c), "a ping, too, is deleted by its text")
	})
}

// requireTextLikeList compares the text of n entries with the list.
func requireTextLikeList(t *testing.T, c *Conn, n int) {
	t.Helper()
	for _, family := range []uint8{v4, v6} {
		var want []entry
		require.NoError(t, c.each(t.Context(), filter{family: family}, func(e *entry) {
			want = append(want, entry{tuple: e.tuple, answers: e.answers, mark: e.mark})
		}))
		n -= len(want)
		got, complete := c.fromText(family)
		require.True(t, complete)
		for i := range got { // which the list is not asked for
			got[i].key, got[i].icmpID, got[i].answers.icmpID = nil, 0, 0
		}
		order := func(a, b entry) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
		slices.SortFunc(want, order)
		slices.SortFunc(got, order)
		require.Equal(t, want, got)
	}
	require.Zero(t, n)
}

// TestTextOfManyEntries is not used, because some may be missing.
func TestTextOfManyEntries(t *testing.T) {
	privhost.RequireRoot(t)
	c := opened(t, true)
	for i := 1; ; i++ {
		track(t, udp, fmt.Sprintf("192.0.2.1:%d", i), "192.0.2.3:999", "192.0.2.3:999")
		entries, complete := c.fromText(v4)
		if !complete {
			require.Greater(t, i, 8)
			break
		}
		require.Len(t, entries, i)
		require.Less(t, i*shortestLine, os.Getpagesize())
	}
	var listed int
	require.NoError(t, c.List(t.Context(), v4, func(Entry) { listed++ }))
	require.Equal(t, c.count(), listed)
}

// TestOddText is not used.
func TestOddText(t *testing.T) {
	const line = "ipv4     2 udp      17 29 src=192.0.2.1 dst=192.0.2.2 sport=1 dport=53 src=10.0.0.5 dst=192.0.2.1 sport=53 dport=1 mark=7 zone=0 use=2\n"
	var e entry
	family, ok := e.parse([]byte(line))
	require.True(t, ok)
	require.EqualValues(t, v4, family)
	require.Equal(t, entry{
		tuple: tuple{protocol: udp, source: ip4("192.0.2.1"), destination: ip4("192.0.2.2"), sourcePort: 1, port: 53}, answers: tuple{protocol: udp, source: ip4("10.0.0.5"), destination: ip4("192.0.2.1"), sourcePort: 53, port: 1}, mark: 7,
	}, e)
	for _, odd := range []string{
		"", "ipv4 2 udp", "ipx 2 udp 17 src=192.0.2.1 src=192.0.2.2", "ipv4 2 udp 17 src=192.0.2.1 dst=192.0.2.2", "ipv4 2 udp x src=192.0.2.1 src=192.0.2.2",
		"ipv4 2 udp 17 src=x src=192.0.2.2", "ipv4 2 udp 17 src=192.0.2.1 dport=65536 src=192.0.2.2", "ipv4 2 gre 47 src=192.0.2.1 srckey=0x1 src=192.0.2.2",
		"ipv4 2 udp 17 src=192.0.2.1 src=192.0.2.2 zone-orig=1",
	} {
		var e entry
		_, ok := e.parse([]byte(odd))
		require.False(t, ok, odd)
	}
}

// TestNoListOfFewEntries: the kernel lists no entries if the text shows that there is nothing to delete.
func TestNoListOfFewEntries(t *testing.T) {
	privhost.RequireRoot(t)
	c := opened(t, true)
	track(t, udp, "192.0.2.1:1", "192.0.2.2:53", "10.77.0.5:53")
	sockets := c.sockets
	defer func() { c.sockets = sockets }()
	asked := errors.New("the kernel is asked")
	c.sockets = refusing{asked}
	ctx := t.Context()
	other := Redirection{port(udp, 53, anyIP), netip.MustParseAddrPort("10.77.0.6:53")}
	denied := func(Flow) (bool, error) { return true, nil }
	require.NoError(t, c.List(ctx, v4, func(Entry) {}))
	_, err := c.Ports(ctx, v4)
	require.NoError(t, err)
	require.NoError(t, c.FlushRedirections(ctx, v4, other))
	require.NoError(t, c.EndFlows(ctx, []netip.Addr{ip4("10.77.0.6"), ip4("fd00:77::5")}, nil, denied))
	other.To = netip.MustParseAddrPort("10.77.0.5:53")
	require.ErrorIs(t, c.FlushRedirections(ctx, v4, other), asked)
	require.ErrorIs(t, c.EndFlows(ctx, []netip.Addr{ip4("10.77.0.5")}, nil, denied), asked)
}

// refusing answers each request with an error.
type refusing struct{ err error }

func (r refusing) Exchange(context.Context, *sock.Requests, func(int, []byte, error)) error {
	return r.err
}
func (r refusing) Dump(context.Context, *sock.Requests, func([]byte) error) error { return r.err }
func (r refusing) Close() error                                                   { return nil }
