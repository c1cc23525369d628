package ruleset

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/shard"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(shard.Main(m, 3, func() int { return privhost.Main(m) }))
}

// open opens a ruleset on a host without rules.
func open(t testing.TB) *Ruleset {
	t.Helper()
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	return openAnother(t)
}

func openAnother(t testing.TB) *Ruleset {
	t.Helper()
	r, err := Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func nft(t testing.TB, args ...string) string {
	t.Helper()
	return run(t, "nft", args...)
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, args, out)
	return string(out)
}

func owner(id string) names.Owner { return names.Owner{Network: "net", ID: id, IfName: "eth0"} }

// example returns the elements of an allocation with a number, all of them for
// each family.
func example(i int, families ...string) *Elements {
	e := &Elements{Owner: owner(fmt.Sprintf("alloc-%d", i))}
	if len(families) == 0 {
		families = []string{"ip", "ip6"}
	}
	for _, f := range families {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 16)
		if f == "ip6" {
			p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), 64)
		}
		to := netip.AddrPortFrom(p.Addr(), 80)
		e.Masquerade = append(e.Masquerade, p)
		e.Published = append(e.Published, Published{p, SNATLocal})
		e.Mappings = append(e.Mappings, Mapping{Protocol: 6, HostPort: uint16(i), To: to}, Mapping{Protocol: 17, HostPort: uint16(i), To: to})
		e.Open = append(e.Open, p.Addr())
	}
	return e
}

// everything returns one element for every set.
func everything() *Elements {
	v4, v6 := netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("fd00:1::3/64")
	other4, other6 := netip.MustParsePrefix("10.1.2.4/24"), netip.MustParsePrefix("fd00:1::4/64")
	third4, third6 := netip.MustParsePrefix("10.1.2.5/24"), netip.MustParsePrefix("fd00:1::5/64")
	return &Elements{
		Owner:      owner("alloc"),
		Masquerade: []netip.Prefix{v4, v6},
		Published:  []Published{{v4, SNATLocal}, {v6, SNATAll}, {other4, SNATAll}, {other6, SNATLocal}, {third4, SNATNone}, {third6, SNATNone}},
		Mappings: []Mapping{
			{Protocol: 6, HostPort: 8080, To: netip.AddrPortFrom(v4.Addr(), 80)},
			{Protocol: 132, HostPort: 8080, To: netip.AddrPortFrom(v6.Addr(), 80)},
			{HostIP: netip.MustParseAddr("127.0.0.1"), Protocol: 17, HostPort: 53, To: netip.AddrPortFrom(v4.Addr(), 5353)},
			{HostIP: netip.MustParseAddr("2001:db8::1"), Protocol: 17, HostPort: 53, To: netip.AddrPortFrom(v6.Addr(), 5353)},
		},
		Exempt: []Exemption{
			{v4, netip.MustParsePrefix("10.1.0.0/16")}, {v4, netip.MustParsePrefix("192.168.0.0/16")},
			{v6, netip.MustParsePrefix("fd00::/16")},
		},
		Open:          []netip.Addr{v4.Addr(), v6.Addr()},
		PublishedOnly: []netip.Prefix{v4, v6},
		Announced:     []Route{{Address: netip.PrefixFrom(v4.Addr(), 32), Table: 100, Protocol: 91, Link: 7}, {Address: v6, Table: 1 << 31, Protocol: 91}},
		Guarded:       []Guard{{Bridge: "cni0"}},
		Unfragmented:  []string{"veth2"},
		Ports: []BridgePort{{
			Name: "veth0", MAC: net.HardwareAddr{2, 1, 2, 3, 4, 5}, Tagged: true, Unfragmented: true, Autoconfigured: true,
			Addresses: []netip.Addr{v4.Addr(), v6.Addr(), netip.MustParseAddr("fe80::1:2ff:fe03:405")},
		}, {Name: "veth1", MAC: net.HardwareAddr{2, 1, 2, 3, 4, 6}, Unaddressed: true}},
	}
}

// requireStructure checks that a table has all rules, each once.
func requireStructure(t testing.TB, r *Ruleset, tables ...*table) {
	t.Helper()
	for _, table := range tables {
		is, err := r.inspect(t.Context(), table)
		require.NoError(t, err)
		require.Empty(t, table.problems(is))
	}
}

// countElements returns the number of elements that have an owner.
func countElements(t testing.TB) int {
	t.Helper()
	return strings.Count(nft(t, "list", "ruleset"), `comment "allocnet:`)
}
