package sock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

func opened(t testing.TB, protocol int) *Socket {
	t.Helper()
	privhost.Require(t)
	s, err := Open(protocol)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// link begins a request about a link, by its name or its index.
func link(r *Requests, label string, kind, flags uint16, name string, index uint32) {
	r.Begin(label, kind, flags)
	var m [unix.SizeofIfInfomsg]byte
	binary.NativeEndian.PutUint32(m[4:], index)
	r.Append(m[:]...)
	if name != "" {
		r.CString(unix.IFLA_IFNAME, name)
	}
}

const group = 7 // of the links

// addBridges adds links, all in one Exchange.
func addBridges(t testing.TB, s *Socket, names ...string) {
	t.Helper()
	var r Requests
	for _, name := range names {
		link(&r, "add "+name, unix.RTM_NEWLINK, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, name, 0)
		info := r.Nest(unix.IFLA_LINKINFO)
		r.String(1, "bridge") // IFLA_INFO_KIND
		r.End(info)
		r.Uint32(unix.IFLA_GROUP, group)
	}
	n := 0
	require.NoError(t, s.Exchange(t.Context(), &r, func(i int, payload []byte, err error) {
		require.NoError(t, err)
		require.Nil(t, payload)
		require.Equal(t, n, i)
		n++
	}))
	require.Equal(t, len(names), n)
	t.Cleanup(func() {
		r.Reset()
		link(&r, "", unix.RTM_DELLINK, unix.NLM_F_ACK, "", 0)
		r.Uint32(unix.IFLA_GROUP, group)
		require.NoError(t, s.Exchange(context.Background(), &r, func(_ int, _ []byte, err error) { require.NoError(t, err) }))
	})
}

// numbered are names of links, enough for a dump of several parts.
func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "n" + string(rune('a'+i/26/26)) + string(rune('a'+i/26%26)) + string(rune('a'+i%26))
	}
	return names
}

// Every request is answered, in order, also behind one that fails.
func TestExchange(t *testing.T) {
	s := opened(t, unix.NETLINK_ROUTE)
	addBridges(t, s, numbered(200)...) // more than go into one system call
	var r Requests
	const get, set = unix.RTM_GETLINK, unix.RTM_SETLINK
	for _, last := range []string{"naac", "none"} {
		r.Reset()
		type request struct {
			kind uint16
			name string
		}
		requests := []request{{get, "naaa"}, {get, "none"}, {set, "naab"}, {set, "none"}, {set, "naab"}, {set, "naab"}, {get, "naac"}}
		requests = append(requests, slices.Repeat([]request{{set, "naab"}}, mostPending)...) // more than one call
		requests = append(requests, request{set, last})
		for _, one := range requests {
			link(&r, "for "+one.name, one.kind, map[uint16]uint16{set: unix.NLM_F_ACK}[one.kind], one.name, 0)
		}
		for range 2 { // requests can be made again
			answered := 0
			require.NoError(t, s.Exchange(t.Context(), &r, func(i int, payload []byte, err error) {
				require.Equal(t, answered, i)
				answered++
				if requests[i].name == "none" {
					require.ErrorIs(t, err, unix.ENODEV)
					require.EqualError(t, err, "for none: no such device")
					return
				}
				require.NoError(t, err)
				require.Equal(t, requests[i].kind == set, payload == nil)
			}))
			require.Equal(t, len(requests), answered)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Exchange(ended, &r, nil), context.Canceled)
	require.NoError(t, s.Exchange(ended, new(Requests), nil), "there is nothing to do")
}

func dumpLinks(ctx context.Context, s Exchanger, each func([]byte) error) error {
	return Build(func(r *Requests) { link(r, "links", unix.RTM_GETLINK, unix.NLM_F_DUMP, "", 0) },
		func(r *Requests) error { return s.Dump(ctx, r, each) })
}

// A dump that is given up, or whose function fails, does not disturb the next.
func TestDump(t *testing.T) {
	s := opened(t, unix.NETLINK_ROUTE)
	addBridges(t, s, numbered(300)...)
	all := func() (n int) {
		require.NoError(t, dumpLinks(t.Context(), s, func([]byte) error { n++; return nil }))
		return n
	}
	n := all()
	require.Greater(t, n, 300)
	ctx, cancel := context.WithCancel(t.Context())
	some := 0
	require.ErrorIs(t, dumpLinks(ctx, s, func([]byte) error { some++; cancel(); return nil }), context.Canceled)
	require.Less(t, some, n)
	require.Equal(t, n, all())
	broken, seen := errors.New("broken"), 0
	require.ErrorIs(t, dumpLinks(t.Context(), s, func([]byte) error {
		if seen++; seen == 2 {
			return broken
		}
		return nil
	}), broken)
	require.Equal(t, n, seen)
	require.Equal(t, n, all())
	err := Build(func(r *Requests) { r.Begin("nonsense", 999, unix.NLM_F_DUMP); r.Append(0, 0, 0, 0) },
		func(r *Requests) error { return s.Dump(t.Context(), r, nil) })
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	require.ErrorContains(t, err, "nonsense: ")
}

// table begins a request about a table.
func table(r *Requests, name string, kind, flags uint16) {
	r.BeginNetfilter(name, unix.NFNL_SUBSYS_NFTABLES, kind, flags, unix.NFPROTO_IPV4)
	r.CString(unix.NFTA_TABLE_NAME, name)
}

// A transaction is done as a whole, or not, and its errors name all that failed.
func TestTransaction(t *testing.T) {
	s := opened(t, unix.NETLINK_NETFILTER)
	require.NoError(t, s.Transaction(t.Context(), func(*Requests) {}))
	exists := func(name string) bool {
		var found error
		require.NoError(t, Build(func(r *Requests) { table(r, name, unix.NFT_MSG_GETTABLE, 0) }, func(r *Requests) error {
			return s.Exchange(t.Context(), r, func(_ int, _ []byte, err error) { found = err })
		}))
		if found != nil {
			require.ErrorIs(t, found, unix.ENOENT)
		}
		return found == nil
	}
	err := s.Transaction(t.Context(), func(r *Requests) {
		table(r, "new", unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
		table(r, "none", unix.NFT_MSG_DELTABLE, 0)
		table(r, "nil", unix.NFT_MSG_DELTABLE, 0)
	})
	require.ErrorIs(t, err, unix.ENOENT)
	require.NotErrorIs(t, err, unix.EEXIST)
	require.EqualError(t, err, "none: no such file or directory; nil: no such file or directory")
	require.False(t, exists("new"))
	large := make([]byte, 200<<10) // more than a socket sends at first
	require.NoError(t, s.Transaction(t.Context(), func(r *Requests) {
		for n := 0; n < len(large); n += 100 {
			table(r, "new", unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
			r.Attribute(6, large[:80]) // NFTA_TABLE_USERDATA
		}
	}))
	require.True(t, exists("new"))
	require.NoError(t, s.Transaction(t.Context(), func(r *Requests) { table(r, "new", unix.NFT_MSG_DELTABLE, 0) }))
	require.False(t, exists("new"))
}

// Requests wait for the one before them, no longer than their context.
func TestWait(t *testing.T) {
	s := opened(t, unix.NETLINK_ROUTE)
	s.turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- dumpLinks(ctx, s, func([]byte) error { return nil }) }()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	<-s.turn
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, dumpLinks(t.Context(), s, nil), os.ErrClosed)
}

func TestPool(t *testing.T) {
	privhost.Require(t)
	p := &Pool{Protocol: unix.NETLINK_ROUTE}
	var users sync.WaitGroup
	for range 3 * mostIdle {
		users.Go(func() {
			for range 20 {
				if err := dumpLinks(t.Context(), p, func([]byte) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	require.NotEmpty(t, p.idle)
	require.LessOrEqual(t, len(p.idle), mostIdle)
	kept := p.idle[0]
	require.NoError(t, p.Close())
	require.ErrorIs(t, dumpLinks(t.Context(), kept, nil), os.ErrClosed)
	require.ErrorIs(t, dumpLinks(t.Context(), p, nil), os.ErrClosed)
	require.NoError(t, p.Close())
}

// A thread in another namespace is not lent the process's sockets, and leaves none there.
func TestLend(t *testing.T) {
	privhost.Require(t)
	s := opened(t, unix.NETLINK_ROUTE)
	addBridges(t, s, "here")
	links := func() (n int) {
		require.NoError(t, dumpLinks(t.Context(), Here{unix.NETLINK_ROUTE}, func([]byte) error { n++; return nil }))
		return n
	}
	n := links()
	require.GreaterOrEqual(t, n, 2)
	idle := len(shared[unix.NETLINK_ROUTE].idle)
	require.NotZero(t, idle)
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // and end the thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		done <- links()
	}()
	require.Less(t, <-done, n)
	require.Equal(t, n, links())
	require.Len(t, shared[unix.NETLINK_ROUTE].idle, idle)
}

func BenchmarkExchange(b *testing.B) {
	privhost.Require(b)
	for name, s := range map[string]Exchanger{"socket": opened(b, unix.NETLINK_ROUTE), "here": Here{unix.NETLINK_ROUTE}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, Build(func(r *Requests) { link(r, "", unix.RTM_GETLINK, 0, "lo", 0) }, func(r *Requests) error {
					return s.Exchange(b.Context(), r, func(int, []byte, error) {})
				}))
			}
		})
	}
}

// TestNumberedTransaction: the number of a transaction follows that of the one before, also if that was of another socket.
func TestNumberedTransaction(t *testing.T) {
	s, other := opened(t, unix.NETLINK_NETFILTER), opened(t, unix.NETLINK_NETFILTER)
	number := func(build func(r *Requests)) (number uint32) {
		require.NoError(t, s.NumberedTransaction(t.Context(), build, func(n uint32) { number = n }))
		return number
	}
	generation := func() uint32 {
		n, err := Generation(t.Context(), s)
		require.NoError(t, err)
		return n
	}
	chain := func(name string) func(r *Requests) {
		return func(r *Requests) {
			r.BeginNetfilter("chain", unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFPROTO_IPV4)
			r.CString(unix.NFTA_CHAIN_TABLE, "new")
			r.CString(unix.NFTA_CHAIN_NAME, name)
		}
	}
	require.Zero(t, number(func(*Requests) {}))
	require.Zero(t, number(func(r *Requests) { table(r, "new", unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE) }), "not echoed")
	for i := range 3 {
		before := generation()
		require.Equal(t, before+1, number(chain(fmt.Sprint("a", i))))
		require.Equal(t, before+1, generation())
		require.NoError(t, other.Transaction(t.Context(), chain(fmt.Sprint("b", i))))
		require.Equal(t, before+3, number(chain(fmt.Sprint("c", i))))
	}
	err := s.NumberedTransaction(t.Context(), func(r *Requests) {
		chain("d")(r)
		table(r, "none", unix.NFT_MSG_DELTABLE, 0)
	}, func(uint32) { t.Error("nothing has changed") })
	require.ErrorIs(t, err, unix.ENOENT)
	require.Zero(t, number(func(r *Requests) { table(r, "new", unix.NFT_MSG_DELTABLE, 0) }), "not echoed")
	before := generation()
	require.NoError(t, s.AwaitTransaction(t.Context()))
	require.Equal(t, before, generation())
}
