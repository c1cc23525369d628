package ruleset

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
)

// attached returns a ruleset on a host without rules, and the owners of its attachments.
func attached(t *testing.T, owners ...names.Owner) (*Ruleset, map[string]bool) {
	t.Helper()
	r, list := open(t), map[string]bool{}
	for _, o := range owners {
		list[o.String()] = true
	}
	r.Attached(func() (map[string]bool, error) { return list, nil })
	return r, list
}

// TestAddressOfAnother: an address of an attachment that exists is refused, whichever elements it
// has, and stays as it is. When the attachment is gone, the address changes hands.
func TestAddressOfAnother(t *testing.T) {
	p4, p6 := netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("fd00:1::3/64")
	for name, of := range map[string]func(*Elements){
		"masqueraded": func(e *Elements) { e.Masquerade = []netip.Prefix{p4} },
		"IPv6":        func(e *Elements) { e.Masquerade = []netip.Prefix{p6} },
		"published":   func(e *Elements) { e.Published = []Published{{p4, SNATLocal}} },
		"SNAT":        func(e *Elements) { e.Published = []Published{{p6, SNATAll}} },
		"open":        func(e *Elements) { e.Open = []netip.Addr{p4.Addr()} },
		"announced":   func(e *Elements) { e.Announced = []Route{{Address: p4, Table: 100}} },
		"known":       func(e *Elements) { e.Known = []netip.Addr{p6.Addr()} },
		"policed":     func(e *Elements) { e.Policed = []Policed{{Address: p4.Addr()}} },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := &Elements{Owner: owner("first")}, &Elements{Owner: owner("second")}
			of(first)
			of(second)
			second.Open = append(second.Open, netip.MustParseAddr("10.9.9.9"))
			r, list := attached(t, first.Owner, second.Owner)
			require.NoError(t, r.Add(t.Context(), &Elements{Owner: owner("third"), Open: []netip.Addr{netip.MustParseAddr("10.9.9.8")}}), "makes the table")
			require.NoError(t, r.RequireFree(t.Context(), second))
			require.NoError(t, r.Add(t.Context(), first))
			require.NoError(t, r.Add(t.Context(), first), "again")
			before := nft(t, "list", "ruleset")
			for act, err := range map[string]error{
				"Add": r.Add(t.Context(), second), "Replace": r.Replace(t.Context(), &Elements{Owner: second.Owner}, second),
				"RequireFree": r.RequireFree(t.Context(), second),
			} {
				require.ErrorIs(t, err, ErrAddressTaken, act)
				require.ErrorIs(t, err, allocnet.ErrAddressUnavailable, act)
				require.ErrorContains(t, err, "allocnet:net/first/eth0", act)
			}
			require.NoError(t, r.RequireFree(t.Context(), first))
			require.NoError(t, r.Del(t.Context(), second))
			require.Equal(t, before, nft(t, "list", "ruleset"))

			delete(list, first.Owner.String())
			require.NoError(t, r.RequireFree(t.Context(), second))
			require.NoError(t, r.Add(t.Context(), second))
			require.NoError(t, r.Check(t.Context(), second))
			require.NoError(t, r.Del(t.Context(), first))
			require.NoError(t, r.Check(t.Context(), second))
		})
	}
}

// TestAddressOfTheSameContainer: two attachments of a container do not have one address either, but
// share the elements of their bridge ports.
func TestAddressOfTheSameContainer(t *testing.T) {
	first, second := &Elements{Owner: owner("a")}, &Elements{Owner: owner("a")}
	second.Owner.IfName = "eth1"
	r, _ := attached(t, first.Owner, second.Owner)
	crossing := []BridgePort{{Name: "veth0", MAC: net.HardwareAddr{2, 1, 2, 3, 4, 5}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.2.3")}}}
	first.Ports, second.Ports = crossing, crossing
	require.NoError(t, r.Add(t.Context(), first))
	require.NoError(t, r.Add(t.Context(), second))
	require.NoError(t, r.Check(t.Context(), second))
	another := &Elements{Owner: owner("b"), Ports: crossing}
	require.ErrorIs(t, r.Add(t.Context(), another), ErrAddressTaken)
	first.Ports, second.Ports = nil, nil
	first.Open = []netip.Addr{netip.MustParseAddr("10.1.2.3")}
	second.Open = first.Open
	require.NoError(t, r.Add(t.Context(), first))
	require.ErrorIs(t, r.Add(t.Context(), second), ErrAddressTaken)
	require.NoError(t, r.Check(t.Context(), first))
}

// TestAddressOfAnUnknownAttachment: without the list of attachments, nothing is taken over.
func TestAddressOfAnUnknownAttachment(t *testing.T) {
	r := open(t)
	failure := errors.New("no list")
	r.Attached(func() (map[string]bool, error) { return nil, failure })
	first := &Elements{Owner: owner("first"), Open: []netip.Addr{netip.MustParseAddr("10.1.2.3")}}
	require.NoError(t, r.Add(t.Context(), first))
	second := *first
	second.Owner = owner("second")
	require.ErrorIs(t, r.Add(t.Context(), &second), failure)
	require.NoError(t, r.Check(t.Context(), first))
}
