package announce

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// host is a private host with a bridge and a veth.
type host struct {
	*testing.T
	Announcer
	bridge, veth int
}

func newHost(t *testing.T) *host {
	privhost.Require(t, "nft", "ip")
	h := &host{T: t}
	h.Kernel = rtnl.OpenHost()
	var err error
	h.Rules, err = ruleset.Open()
	require.NoError(t, err)
	for _, line := range []string{"link add br0 type bridge", "link set br0 up", "link add v0 type veth peer v1", "link set v0 up", "link set v1 up"} {
		h.run("ip", line)
	}
	t.Cleanup(func() {
		h.Kernel.Close()
		require.NoError(t, h.Rules.Close())
		h.run("ip", "link del br0")
		h.run("ip", "link del v0")
		h.run("nft", "flush ruleset")
		require.Empty(t, h.routes())
	})
	h.bridge, err = h.Kernel.Index("br0")
	require.NoError(t, err)
	h.veth, err = h.Kernel.Index("v0")
	require.NoError(t, err)
	return h
}

func (h *host) run(command, args string) string {
	h.Helper()
	out, err := exec.Command(command, strings.Fields(args)...).CombinedOutput()
	require.NoError(h, err, "%s %s: %s", command, args, out)
	return string(out)
}

// routes returns the routes of table 100, one per line, without what iproute2 adds for IPv6.
func (h *host) routes() string {
	h.Helper()
	var lines []string
	for _, family := range []string{"-4", "-6"} {
		out, _ := exec.Command("ip", family, "route", "show", "table", "100").Output() // fails without the table
		for line := range strings.Lines(string(out)) {
			line, _, _ = strings.Cut(strings.Replace(line, " linkdown", "", 1), " metric 1024")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// elements returns the descriptions of all elements.
func (h *host) elements() string {
	h.Helper()
	all, err := h.Rules.Owned(h.Context(), func(names.Owner) bool { return true })
	require.NoError(h, err)
	return strings.Join(all, "\n")
}

func owner(id string) names.Owner { return names.Owner{Network: "net", ID: id, IfName: "eth0"} }

func to(address string, link int) Route {
	return Route{Route: ruleset.Route{Address: netip.MustParsePrefix(address), Table: 100, Protocol: 91, Link: link}}
}

func own(address string, link int) Route {
	r := to(address, link)
	r.Own = true
	return r
}

func TestLife(t *testing.T) {
	h := newHost(t)
	for name, c := range map[string]struct {
		routes         []Route
		table, element string
	}{
		"shared link": {[]Route{to("10.1.0.2/32", h.bridge), to("fd01::2/128", h.bridge)},
			"10.1.0.2 dev br0 proto 91 scope link\nfd01::2 dev br0 proto 91", "announced address 10.1.0.2 (table 100) of allocnet:net/a/eth0\nannounced address fd01::2 (table 100) of allocnet:net/a/eth0"},
		"own link":  {[]Route{own("10.1.0.2/32", h.veth), own("fd01::2/128", h.veth)}, "10.1.0.2 dev v0 proto 91 scope link\nfd01::2 dev v0 proto 91", ""},
		"networks":  {[]Route{to("10.1.0.2/24", h.bridge)}, "10.1.0.0/24 dev br0 proto 91 scope link", "announced address 10.1.0.2 (table 100) of allocnet:net/a/eth0"},
		"no link":   {[]Route{to("10.1.0.2/24", 0), to("fd01::2/64", 0)}, "unreachable 10.1.0.0/24 proto 91\nunreachable fd01::/64 dev lo proto 91", "announced address 10.1.0.2 (table 100) of allocnet:net/a/eth0\nannounced address fd01::2 (table 100) of allocnet:net/a/eth0"},
		"no routes": {nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h.T = t
			for range 2 {
				require.NoError(t, h.Add(t.Context(), owner("a"), c.routes))
				require.Equal(t, c.table, h.routes())
				require.Equal(t, c.element, h.elements())
				require.NoError(t, h.Check(t.Context(), owner("a"), c.routes))
			}
			for _, r := range c.routes {
				require.NoError(t, h.delete([]ruleset.Route{r.Route}))
				require.ErrorIs(t, h.Check(t.Context(), owner("a"), c.routes), ErrMissing)
				added, err := h.Ensure(r)
				require.NoError(t, err)
				require.True(t, added)
				require.NoError(t, h.Check(t.Context(), owner("a"), c.routes))
			}
			for range 2 {
				require.NoError(t, h.Withdraw(t.Context(), owner("a"), c.routes))
				require.Empty(t, h.routes())
				require.Empty(t, h.elements())
			}
		})
	}
}

// TestWithdrawOf: what an owner has is found without knowing the addresses.
func TestWithdrawOf(t *testing.T) {
	h := newHost(t)
	for id, routes := range map[string][]Route{
		"a": {to("10.1.0.2/32", h.bridge), to("fd01::2/128", h.bridge)}, "b": {to("10.1.0.3/32", h.bridge)}, "c": {to("10.2.0.2/16", 0)}, "d": {to("10.2.0.3/16", 0)},
	} {
		require.NoError(t, h.Add(t.Context(), owner(id), routes))
	}
	withdraw := func(ids string) {
		require.NoError(t, h.WithdrawOf(t.Context(), func(o names.Owner) bool { return strings.Contains(ids, o.ID) }))
	}
	withdraw("ac")
	require.Equal(t, "10.1.0.3 dev br0 proto 91 scope link\nunreachable 10.2.0.0/16 proto 91", h.routes())
	withdraw("bd")
	require.Empty(t, h.routes())
	require.Empty(t, h.elements())
	h.run("ip", "route add unreachable 10.2.0.0/16 table 100 proto 91")
	withdraw("abcd")
	require.Equal(t, "unreachable 10.2.0.0/16 proto 91", h.routes(), "no element says that it is allocnet's")
	h.run("ip", "route flush table 100")
}

// TestOthers: routes of another protocol, and those whose element names another owner, stay.
func TestOthers(t *testing.T) {
	h := newHost(t)
	mine := []Route{to("10.1.0.2/32", h.bridge)}
	h.run("ip", "route add 10.1.0.2/32 dev br0 table 100 proto 92")
	require.ErrorIs(t, h.Add(t.Context(), owner("a"), mine), rtnl.ErrRouteTaken)
	require.NoError(t, h.Withdraw(t.Context(), owner("a"), mine))
	require.Equal(t, "10.1.0.2 dev br0 proto 92 scope link", h.routes())
	require.Empty(t, h.elements())
	h.run("ip", "route flush table 100")

	require.NoError(t, h.Add(t.Context(), owner("b"), mine))
	require.NoError(t, h.Withdraw(t.Context(), owner("a"), mine))
	require.NoError(t, h.Check(t.Context(), owner("b"), mine))
	require.NoError(t, h.Withdraw(t.Context(), owner("b"), mine))
}

// TestWithdrawAfterChanges: the element has the link of the ADD; without an element, the
// caller's knowledge counts, and without a link as well there is nothing.
func TestWithdrawAfterChanges(t *testing.T) {
	h := newHost(t)
	require.NoError(t, h.Add(t.Context(), owner("a"), []Route{to("10.1.0.2/32", h.bridge)}))
	require.NoError(t, h.Withdraw(t.Context(), owner("a"), []Route{to("10.1.0.2/32", Gone)}))
	require.Empty(t, h.routes())

	require.NoError(t, h.Add(t.Context(), owner("a"), []Route{to("10.1.0.2/32", h.bridge)}))
	h.run("nft", "flush ruleset")
	require.NoError(t, h.Withdraw(t.Context(), owner("a"), []Route{to("10.1.0.2/32", Gone), own("10.1.0.3/32", Gone)}))
	require.NotEmpty(t, h.routes())
	require.NoError(t, h.Withdraw(t.Context(), owner("a"), []Route{to("10.1.0.2/32", h.bridge)}))
	require.Empty(t, h.routes())
}

// TestLastOfANetwork: while attachments of a network come and go at the same time, those that
// stay keep the route, and the last one removes it.
func TestLastOfANetwork(t *testing.T) {
	h := newHost(t)
	const many, rounds = 8, 16
	route := func(i int) []Route { return []Route{to(fmt.Sprintf("10.1.0.%d/16", i+2), 0)} }
	for round := range rounds {
		var running sync.WaitGroup
		errs := make([]error, many)
		for i := range many {
			running.Go(func() {
				errs[i] = h.Add(t.Context(), owner(fmt.Sprint(i)), route(i))
				if errs[i] == nil && (i > 0 || round%2 == 0) {
					errs[i] = h.Withdraw(t.Context(), owner(fmt.Sprint(i)), route(i))
				}
			})
		}
		running.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		want := ""
		if round%2 == 1 {
			want = "unreachable 10.1.0.0/16 proto 91"
		}
		require.Equal(t, want, h.routes(), "round %d", round)
	}
	require.NoError(t, h.Withdraw(t.Context(), owner("0"), route(0)))
	require.Empty(t, h.routes())
}

// TestAddedAgainDuringWithdraw: an attachment that comes and goes between the two steps in which the last
// one removes the route and its element leaves the route to that one.
func TestAddedAgainDuringWithdraw(t *testing.T) {
	h := newHost(t)
	route, another := []Route{to("10.1.0.2/16", 0)}, []Route{to("10.1.0.3/16", 0)}
	require.NoError(t, h.Add(t.Context(), owner("last"), route))
	require.NoError(t, h.delete([]ruleset.Route{route[0].Route}))
	require.NoError(t, h.Add(t.Context(), owner("other"), another))
	require.NoError(t, h.Withdraw(t.Context(), owner("other"), another))
	require.Equal(t, "unreachable 10.1.0.0/16 proto 91", h.routes())
	require.NoError(t, h.Rules.Del(t.Context(), Elements(owner("last"), route)))
	require.NoError(t, h.settle(t.Context(), &route[0].Route, false))
	require.Empty(t, h.routes())
}

// TestOrder: the element is there before the route, and stays until the route is deleted.
func TestOrder(t *testing.T) {
	h := newHost(t)
	broken := Announcer{Kernel: rtnl.OpenHost(), Rules: h.Rules}
	broken.Kernel.Close()
	for _, r := range []Route{to("10.1.0.2/32", h.bridge), to("10.2.0.2/16", 0)} {
		require.ErrorIs(t, broken.Add(t.Context(), owner("a"), []Route{r}), os.ErrClosed)
		require.NotEmpty(t, h.elements())
		require.NoError(t, h.Add(t.Context(), owner("a"), []Route{r}))
		require.ErrorIs(t, broken.Withdraw(t.Context(), owner("a"), []Route{r}), os.ErrClosed)
		require.ErrorIs(t, broken.WithdrawOf(t.Context(), func(names.Owner) bool { return true }), os.ErrClosed)
		require.NotEmpty(t, h.elements())
		require.NoError(t, h.Withdraw(t.Context(), owner("a"), []Route{r}))
	}
}

// TestCheckOnce: in one context a table is listed once. Routes that were added since then are
// found all the same.
func TestCheckOnce(t *testing.T) {
	h := newHost(t)
	first := []Route{own("10.1.0.2/32", h.veth), own("fd01::2/128", h.veth), to("10.2.0.2/16", 0), to("fd02::2/64", 0)}
	other := []Route{own("10.1.0.3/32", h.veth)}
	require.NoError(t, h.Add(t.Context(), owner("a"), first))
	once := CheckOnce(t.Context())
	require.NoError(t, h.Check(once, owner("a"), first))
	require.ErrorIs(t, h.Check(once, owner("b"), other), ErrMissing)
	require.NoError(t, h.Add(t.Context(), owner("b"), other))
	require.NoError(t, h.Check(once, owner("b"), other))
	for _, r := range first {
		require.NoError(t, h.delete([]ruleset.Route{r.Route}))
	}
	require.NoError(t, h.Check(once, owner("a"), first), "it is not listed again")
	require.ErrorIs(t, h.Check(t.Context(), owner("a"), first), ErrMissing)
	require.ErrorIs(t, h.Check(CheckOnce(once), owner("a"), first), ErrMissing)
	elsewhere := own("10.1.0.3/32", h.bridge)
	require.ErrorIs(t, h.Check(once, owner("b"), []Route{elsewhere}), ErrMissing, "over another link")
	require.NoError(t, h.Withdraw(t.Context(), owner("a"), first))
	require.NoError(t, h.Withdraw(t.Context(), owner("b"), other))
}
