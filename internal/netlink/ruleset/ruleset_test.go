package ruleset

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestGolden(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), everything()))
	listed := nft(t, "list", "ruleset")
	golden := filepath.Join("testdata", "ruleset.nft")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(listed), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), listed)

	// nft accepts its own listing, and a host that restores it has all rules.
	privhost.FlushRuleset(t)
	nft(t, "-f", golden)
	require.Equal(t, listed, nft(t, "list", "ruleset"))
	require.NoError(t, r.Check(t.Context(), everything()))
}

func TestAddIsIdempotent(t *testing.T) {
	r := open(t)
	for range 3 {
		require.NoError(t, r.Add(t.Context(), everything()))
		require.NoError(t, r.Check(t.Context(), everything()))
	}
	require.Equal(t, 31, countElements(t))
	for range 3 {
		require.NoError(t, r.Del(t.Context(), everything()))
		require.Zero(t, countElements(t))
	}
	require.Contains(t, nft(t, "list", "ruleset"), "10.1.2.0/24 . 10.1.2.0/24", "a network stays")
}

func TestOnlyFamiliesInUse(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Del(t.Context(), everything()))
	require.NoError(t, r.Repair(t.Context()))
	require.Empty(t, nft(t, "list", "ruleset"))
	require.NoError(t, r.Add(t.Context(), example(1, "ip6")))
	require.NoError(t, r.Check(t.Context(), example(1, "ip6")))
	require.Equal(t, "table ip6 allocnet\n", nft(t, "list", "tables"))
	require.NoError(t, r.Add(t.Context(), &Elements{}))
	require.NoError(t, r.Check(t.Context(), &Elements{}))
	require.Equal(t, "table ip6 allocnet\n", nft(t, "list", "tables"))
}

// TestAddReplacesOwn: another Add replaces the elements of its owner.
func TestAddReplacesOwn(t *testing.T) {
	r := open(t)
	e := example(1)
	require.NoError(t, r.Add(t.Context(), e))
	e.Mappings[0].To = netip.MustParseAddrPort("10.1.0.1:81")
	e.Guarded = []Guard{{Bridge: "cni0"}}
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Check(t.Context(), e))
	e.Guarded[0].Isolated = true
	require.ErrorContains(t, r.Check(t.Context(), e), `isolated ports of bridge "cni0" (there is passage within bridge "cni0")`)
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Check(t.Context(), e))
}

func TestPortTaken(t *testing.T) {
	for _, family := range []string{"ip", "ip6"} {
		for _, sameTarget := range []bool{false, true} {
			t.Run(fmt.Sprint(family, sameTarget), func(t *testing.T) {
				r := open(t)
				first := example(1, family)
				require.NoError(t, r.Add(t.Context(), first))
				// Both tables and the network exist.
				require.NoError(t, r.Add(t.Context(), example(3)))
				before := nft(t, "list", "ruleset")

				second := example(2) // with both families
				other := map[string]int{"ip": 0, "ip6": 2}[family]
				clash := &second.Mappings[other]
				clash.HostPort = 1
				if sameTarget {
					clash.To = first.Mappings[0].To
				}
				err := openAnother(t).Add(t.Context(), second)
				require.ErrorIs(t, err, ErrPortTaken)
				var taken *PortTakenError
				require.ErrorAs(t, err, &taken)
				require.Equal(t, portTaken(*clash, first.Owner), taken)
				require.EqualError(t, err, "add elements of allocnet:net/alloc-2/eth0: host port 1/tcp is taken by allocnet:net/alloc-1/eth0")

				require.ElementsMatch(t, lines(before), lines(nft(t, "list", "ruleset")))
				require.NoError(t, r.Del(t.Context(), second))
				require.ElementsMatch(t, lines(before), lines(nft(t, "list", "ruleset")))
				require.NoError(t, r.Check(t.Context(), first))
			})
		}
	}
}

// TestPortTakenOnNewHost: nothing is added even if one of the tables does not
// exist yet.
func TestPortTakenOnNewHost(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), example(1, "ip")))
	second := example(2)
	second.Mappings[1].HostPort = 1
	require.ErrorIs(t, r.Add(t.Context(), second), ErrPortTaken)
	require.Equal(t, 5, countElements(t))
}

func TestPortTakenTwiceByItself(t *testing.T) {
	r := open(t)
	e := example(1)
	e.Mappings[1] = e.Mappings[0]
	require.NoError(t, r.Add(t.Context(), e), "the same twice")
	require.NoError(t, r.Del(t.Context(), e))
	e.Mappings[1].To = netip.MustParseAddrPort("10.1.0.1:81")
	err := r.Add(t.Context(), e)
	require.ErrorContains(t, err, "host port 1/tcp is requested twice; for 10.1.0.1:80 and for 10.1.0.1:81")
	require.NotErrorIs(t, err, ErrPortTaken)
	require.Zero(t, countElements(t))
}

func TestForeignOwnerIsKept(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), everything()))
	foreign := everything()
	foreign.Owner = owner("another")
	require.NoError(t, r.Del(t.Context(), foreign))
	require.NoError(t, r.Check(t.Context(), everything()))
	err := r.Check(t.Context(), foreign)
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "host port 8080/tcp -> 10.1.2.3:80 (there is host port 8080/tcp -> 10.1.2.3:80 of allocnet:net/alloc/eth0)")
}

// TestAddressChangesHands: the address was assigned again. Elements of its lost
// owner do not prevent the Add, and a late Del of that owner does no harm.
func TestAddressChangesHands(t *testing.T) {
	r := open(t)
	lost, next := example(1), example(1)
	lost.Mappings, next.Mappings = nil, nil
	lost.Owner = owner("lost")
	require.NoError(t, r.Add(t.Context(), lost))
	require.NoError(t, r.Add(t.Context(), next))
	require.NoError(t, r.Check(t.Context(), next))
	require.NoError(t, r.Del(t.Context(), lost))
	require.NoError(t, r.Check(t.Context(), next))
}

func TestElementsWithoutComment(t *testing.T) {
	r := open(t)
	e := example(1, "ip")
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Del(t.Context(), e))
	nft(t, "add element ip allocnet host_ports { tcp . 1 : 10.1.0.1 . 80 }")
	nft(t, "add element ip allocnet host_ports { udp . 1 : 10.1.0.9 . 80 }")
	require.ErrorIs(t, r.Add(t.Context(), e), ErrPortTaken)
	require.NoError(t, r.Del(t.Context(), e))
	listed := nft(t, "list map ip allocnet host_ports")
	require.NotContains(t, listed, "10.1.0.1")
	require.Contains(t, listed, "udp . 1 : 10.1.0.9 . 80")

	nft(t, "flush map ip allocnet host_ports")
	nft(t, "add element ip allocnet host_ports { tcp . 1 : 10.1.0.1 . 80 }")
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Check(t.Context(), e))
}

// TestDelForgetsKindOfSNAT: Del removes the elements of an Add with another
// SNAT.
func TestDelForgetsKindOfSNAT(t *testing.T) {
	r := open(t)
	e := everything()
	require.NoError(t, r.Add(t.Context(), e))
	for i := range e.Published {
		e.Published[i].SNAT = SNATNone
	}
	require.NoError(t, r.Del(t.Context(), e))
	require.Zero(t, countElements(t))
}

// TestNestedNetworks: the kernel refuses networks that begin or end within
// others.
func TestNestedNetworks(t *testing.T) {
	for _, order := range [][]string{
		{"10.1.0.1/24", "10.1.0.2/16"}, {"10.1.0.2/16", "10.1.0.1/24"}, {"10.1.255.1/24", "10.1.0.2/16"},
		{"10.1.0.1/24", "10.1.255.1/24", "10.1.0.2/16", "10.1.7.1/24"}, {"fd00::1/64", "fd00::2/48", "fd00::3/127"},
	} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			r := open(t)
			var together Elements
			for i, p := range order {
				e := &Elements{Owner: owner(fmt.Sprint(i)), Masquerade: []netip.Prefix{netip.MustParsePrefix(p)}}
				together.Masquerade = append(together.Masquerade, e.Masquerade...)
				require.NoError(t, r.Add(t.Context(), e))
				require.NoError(t, r.Check(t.Context(), e))
			}
			privhost.FlushRuleset(t)
			require.NoError(t, r.Add(t.Context(), &together))
			require.NoError(t, r.Check(t.Context(), &together))
		})
	}
}

// TestLargerNetworkThatNobodyHas: a larger network stays while an address in it
// is used, and is then replaced by the networks of the addresses in it.
func TestLargerNetworkThatNobodyHas(t *testing.T) {
	r := open(t)
	in := func(id, address string) *Elements {
		return &Elements{Owner: owner(id), Masquerade: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	networks := func(want ...string) {
		t.Helper()
		list := nft(t, "list set ip allocnet networks")
		require.Equal(t, len(want), strings.Count(list, " . 1"), list)
		for _, n := range want {
			require.Contains(t, list, n+" . "+n)
		}
	}
	large, another := in("large", "10.0.0.5/8"), in("another", "10.0.0.6/8")
	require.NoError(t, r.Add(t.Context(), large))
	require.NoError(t, r.Add(t.Context(), another))
	require.NoError(t, r.Del(t.Context(), large))
	for i, address := range []string{"10.1.0.5/16", "10.17.0.5/12", "10.17.1.5/24"} {
		require.NoError(t, r.Add(t.Context(), in(fmt.Sprint(i), address)))
		networks("10.0.0.0/8")
	}
	require.NoError(t, r.Del(t.Context(), another))
	published := &Elements{Owner: owner("published"), Published: []Published{{netip.MustParsePrefix("10.17.2.5/24"), SNATLocal}}}
	require.NoError(t, r.Add(t.Context(), published))
	networks("10.1.0.0/16", "10.16.0.0/12")
	require.NoError(t, r.Check(t.Context(), published))
	for i := range 3 {
		require.NoError(t, r.Del(t.Context(), in(fmt.Sprint(i), []string{"10.1.0.5/16", "10.17.0.5/12", "10.17.1.5/24"}[i])))
	}
	require.NoError(t, r.Add(t.Context(), in("more", "10.17.2.6/24")))
	networks("10.1.0.0/16", "10.17.2.0/24")
}

// TestAddressOfAnUnknownNetwork: an element whose network is unknown keeps the
// existing network.
func TestAddressOfAnUnknownNetwork(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), &Elements{Owner: owner("large"), Masquerade: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/8")}}))
	saved := nft(t, "list", "ruleset")
	privhost.FlushRuleset(t)
	file := filepath.Join(t.TempDir(), "saved.nft")
	require.NoError(t, os.WriteFile(file, []byte(saved), 0o600))
	nft(t, "-f", file)
	require.NoError(t, r.Add(t.Context(), &Elements{Owner: owner("small"), Masquerade: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/16")}}))
	require.Contains(t, nft(t, "list set ip allocnet networks"), "10.0.0.0/8")
}

// TestPortTakenOnEveryAddress: a port on one host IP conflicts with the same
// port on every address, because it would take some of its clients.
func TestPortTakenOnEveryAddress(t *testing.T) {
	r := open(t)
	for i, addresses := range [][2]string{{"10.1.0.1:80", "127.0.0.1"}, {"[fd00::1]:80", "::1"}} {
		to, host := netip.MustParseAddrPort(addresses[0]), netip.MustParseAddr(addresses[1])
		every := &Elements{Owner: owner(fmt.Sprint("every", i)), Mappings: []Mapping{{Protocol: 6, HostPort: 8080, To: to}}}
		one := &Elements{Owner: owner("one"), Mappings: []Mapping{{HostIP: host, Protocol: 6, HostPort: 8080, To: to}}}
		require.NoError(t, r.Add(t.Context(), one), "nobody has it")
		require.NoError(t, r.Add(t.Context(), every), "that of one address keeps it")
		require.NoError(t, r.Add(t.Context(), one), "it has it already")
		require.NoError(t, r.Del(t.Context(), one))
		err := r.Add(t.Context(), one)
		var taken *PortTakenError
		require.ErrorAs(t, err, &taken)
		require.Equal(t, portTaken(one.Mappings[0], every.Owner), taken)
		narrowing := open(t)
		narrowing.MayNarrow = true
		require.NoError(t, narrowing.Add(t.Context(), one))
		require.NoError(t, narrowing.Del(t.Context(), one))
		one.Mappings[0].Protocol = 17
		require.NoError(t, r.Add(t.Context(), one))
		require.NoError(t, r.Del(t.Context(), one))
		every.Mappings = append(every.Mappings, Mapping{HostIP: host, Protocol: 6, HostPort: 8080, To: to})
		require.NoError(t, r.Add(t.Context(), every), "both are its own")
	}
}

// TestManyPorts: one transaction has many messages, more than the socket's
// initial buffer.
func TestManyPorts(t *testing.T) {
	privhost.RequireRoot(t) // other users cannot enlarge the buffer
	r := open(t)
	e := &Elements{Owner: owner("many")}
	for i := range 8000 {
		e.Mappings = append(e.Mappings, Mapping{Protocol: 6, HostPort: uint16(1 + i), To: netip.MustParseAddrPort("10.1.0.1:80")})
	}
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Check(t.Context(), e))
	texts, err := r.Owned(t.Context(), func(o names.Owner) bool { return o == e.Owner })
	require.NoError(t, err)
	require.Len(t, texts, 8000)
	require.NoError(t, r.Del(t.Context(), e))
	require.Zero(t, countElements(t))
}

func TestOwned(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), everything()))
	require.NoError(t, r.Add(t.Context(), example(7)))
	nft(t, "add element ip allocnet open { 10.1.2.9 }")
	ours := func(o names.Owner) bool { return o.OfID("alloc") }
	texts, err := r.Owned(t.Context(), ours)
	require.NoError(t, err)
	const of = " of allocnet:net/alloc/eth0"
	require.Equal(t, []string{
		`MAC 02:01:02:03:04:05 of bridge port "veth0"` + of,
		`MAC 02:01:02:03:04:06 of bridge port "veth1"` + of,
		`VLAN tags of bridge port "veth0"` + of,
		`address 10.1.2.3 of bridge port "veth0"` + of,
		"address 10.1.2.3 that only host ports reach" + of,
		`address fd00:1::3 of bridge port "veth0"` + of,
		"address fd00:1::3 that only host ports reach" + of,
		`address fe80::1:2ff:fe03:405 of bridge port "veth0"` + of,
		"announced address 10.1.2.3 (table 100)" + of,
		"announced address fd00:1::3 (table 2147483648)" + of,
		`every address of bridge port "veth1"` + of,
		"host port 127.0.0.1:53/udp -> 10.1.2.3:5353" + of,
		"host port 8080/sctp -> [fd00:1::3]:80" + of,
		"host port 8080/tcp -> 10.1.2.3:80" + of,
		"host port [2001:db8::1]:53/udp -> [fd00:1::3]:5353" + of,
		"interface identifier 000102fffe030405 of bridge port \"veth0\"" + of,
		"masqueraded address 10.1.2.3" + of,
		"masqueraded address fd00:1::3" + of,
		`neighbour discovery for fd00:1::3 of bridge port "veth0"` + of,
		`neighbour discovery for fe80::1:2ff:fe03:405 of bridge port "veth0"` + of,
		`no fragments from "veth2"` + of,
		`no fragments from "veth2"` + of,
		`no fragments from bridge port "veth0"` + of,
		"open address 10.1.2.3" + of,
		"open address fd00:1::3" + of,
		"published address 10.1.2.3 (snat local)" + of,
		"published address 10.1.2.4 (snat all)" + of,
		"published address 10.1.2.5 (snat none)" + of,
		"published address fd00:1::3 (snat all)" + of,
		"published address fd00:1::4 (snat local)" + of,
		"published address fd00:1::5 (snat none)" + of,
	}, texts)
	require.NoError(t, r.DelOwned(t.Context(), ours))
	require.NoError(t, r.Check(t.Context(), example(7)))
	require.Equal(t, 10, countElements(t))
	require.Contains(t, nft(t, "list set ip allocnet open"), "10.1.2.9", "nobody's element stays")
	privhost.FlushRuleset(t)
	require.NoError(t, r.DelOwned(t.Context(), ours))
}

func TestInvalidElements(t *testing.T) {
	r := open(t)
	ip4 := netip.MustParsePrefix("10.1.2.3/24")
	for want, e := range map[string]*Elements{
		"an address is missing":         {Open: []netip.Addr{{}}},
		"is not a network":              {Masquerade: []netip.Prefix{netip.PrefixFrom(ip4.Addr(), 33)}},
		`no such SNAT as ""`:            {Published: []Published{{Address: ip4}}},
		"the address is missing":        {Mappings: []Mapping{{Protocol: 6, HostPort: 1}}},
		"10.1.2.3 is of another family": {Mappings: []Mapping{{HostIP: netip.IPv6Loopback(), To: netip.AddrPortFrom(ip4.Addr(), 80)}}},
		"is not the name of a bridge":   {Guarded: []Guard{{Bridge: "longer-than-any-link"}}},
	} {
		e.Owner = owner("alloc")
		require.ErrorContains(t, r.Add(t.Context(), e), want)
		require.ErrorContains(t, r.Del(t.Context(), e), want)
		require.ErrorContains(t, r.Check(t.Context(), e), want)
	}
	require.Empty(t, nft(t, "list", "ruleset"))
}

// TestEquivalentAddresses: addresses may have the form of a net.IP, and "every
// address" may be explicit.
func TestEquivalentAddresses(t *testing.T) {
	r := open(t)
	mapped := netip.MustParseAddr("::ffff:10.1.2.3")
	e := &Elements{
		Owner: owner("alloc"), Masquerade: []netip.Prefix{netip.PrefixFrom(mapped, 120)}, Open: []netip.Addr{mapped},
		Mappings: []Mapping{{HostIP: netip.IPv4Unspecified(), Protocol: 6, HostPort: 80, To: netip.AddrPortFrom(mapped, 80)}},
	}
	require.NoError(t, r.Add(t.Context(), e))
	plain := &Elements{
		Owner: owner("alloc"), Masquerade: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24")}, Open: []netip.Addr{mapped.Unmap()},
		Mappings: []Mapping{{Protocol: 6, HostPort: 80, To: netip.AddrPortFrom(mapped.Unmap(), 80)}},
	}
	require.NoError(t, r.Check(t.Context(), plain))
}

func TestEndedContextAndClosed(t *testing.T) {
	r := open(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	all := func(names.Owner) bool { return true }
	calls := map[string]func(context.Context) error{
		"add":    func(ctx context.Context) error { return r.Add(ctx, example(1)) },
		"del":    func(ctx context.Context) error { return r.Del(ctx, example(1)) },
		"check":  func(ctx context.Context) error { return r.Check(ctx, example(1)) },
		"repair": r.Repair,
		"owned":  func(ctx context.Context) error { _, err := r.Owned(ctx, all); return err },
		"gc":     func(ctx context.Context) error { return r.DelOwned(ctx, all) },
	}
	for name, call := range calls {
		require.ErrorIs(t, call(ended), context.Canceled, name)
	}
	require.Empty(t, nft(t, "list", "ruleset"))
	require.NoError(t, r.Close())
	for name, call := range calls {
		require.ErrorIs(t, call(t.Context()), os.ErrClosed, name)
	}
}
