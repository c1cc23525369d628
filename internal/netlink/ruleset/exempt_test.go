package ruleset

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// exemptions returns elements with exemptions, which are given as "FROM TO".
func exemptions(pairs ...string) *Elements {
	e := &Elements{Owner: owner("exempt")}
	for _, pair := range pairs {
		from, to, _ := strings.Cut(pair, " ")
		e.Exempt = append(e.Exempt, Exemption{netip.MustParsePrefix(from), netip.MustParsePrefix(to)})
	}
	return e
}

// TestNestedExemptions: the kernel refuses exemptions that begin or end within others.
// One that another contains is not needed, in whatever order they are added.
func TestNestedExemptions(t *testing.T) {
	for _, order := range [][]string{
		{"10.1.0.1/24 10.0.0.0/8", "10.1.0.2/24 10.1.0.0/16"},
		{"10.1.0.2/24 10.1.0.0/16", "10.1.0.1/24 10.0.0.0/8"},
		{"10.1.0.2/24 10.0.0.0/16", "10.1.0.1/24 10.0.0.0/8"},
		{"10.1.0.2/24 10.255.0.0/16", "10.1.0.1/24 10.0.0.0/8"},
		{"10.1.0.2/24 10.0.0.0/16", "10.1.0.1/16 10.0.0.0/8", "10.1.0.3/24 10.0.0.0/8"},
		{"10.1.0.2/24 10.0.0.0/16", "10.1.0.2/24 192.168.0.0/16", "10.1.1.2/24 10.0.0.0/16"},
		{"fd00::1/64 fd00::/48", "fd00::2/64 fd00::/32"},
	} {
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			r := open(t)
			for _, pair := range order {
				e := exemptions(pair)
				for range 2 {
					require.NoError(t, r.Add(t.Context(), e))
					require.NoError(t, r.Check(t.Context(), e))
				}
			}
			require.NoError(t, r.Check(t.Context(), exemptions(order...)))
			privhost.FlushRuleset(t)
			require.NoError(t, r.Add(t.Context(), exemptions(order...)))
			require.NoError(t, r.Check(t.Context(), exemptions(order...)))
			family, _, _ := strings.Cut(strings.TrimPrefix(nft(t, "list", "tables"), "table "), " ")
			nft(t, "flush", "set", family, "allocnet", "exempt")
			restored, err := r.Restore(t.Context(), []*Elements{exemptions(order[0]), exemptions(order...)})
			require.NoError(t, err)
			require.NotEmpty(t, restored.Changed)
			require.NoError(t, r.Check(t.Context(), exemptions(order...)))
		})
	}
}

// TestCrossingExemptions: neither of two exemptions contains the other, and the kernel
// cannot have both.
func TestCrossingExemptions(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), exemptions("10.1.0.0/16 10.0.0.0/16")))
	err := r.Add(t.Context(), exemptions("10.1.0.0/24 10.0.0.0/8"))
	require.ErrorContains(t, err, "exemption from masquerading, 10.1.0.0-10.1.0.255 to 10.0.0.0-10.255.255.255 overlaps with the existing "+
		"exemption from masquerading, 10.1.0.0-10.1.255.255 to 10.0.0.0-10.0.255.255: give both networks the same exceptions")
	require.NoError(t, r.Check(t.Context(), exemptions("10.1.0.0/16 10.0.0.0/16")))
}

// TestExemptionsStay: exemptions have no owner.
func TestExemptionsStay(t *testing.T) {
	r := open(t)
	e := exemptions("10.1.0.0/16 10.0.0.0/8")
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Del(t.Context(), e))
	require.NoError(t, r.Check(t.Context(), e))
}

// TestDelUnusedExemptions: an exemption is removed with the last masqueraded address of
// its network.
func TestDelUnusedExemptions(t *testing.T) {
	for _, c := range []struct{ address, used, unused string }{
		{"10.1.2.3/16", "10.1.0.0/16 10.0.0.0/8", "10.2.0.0/16 10.0.0.0/8"},
		{"fd01::3/64", "fd01::/64 fd00::/8", "fd01:0:0:1::/64 fd00::/8"},
	} {
		t.Run(c.address, func(t *testing.T) {
			r := open(t)
			removed, err := r.DelUnusedExemptions(t.Context()) // there is no table
			require.NoError(t, err)
			require.Zero(t, removed)
			masqueraded := &Elements{Owner: owner("a"), Masquerade: []netip.Prefix{netip.MustParsePrefix(c.address)}}
			require.NoError(t, r.Add(t.Context(), masqueraded))
			require.NoError(t, r.Add(t.Context(), exemptions(c.used, c.unused)))

			removed, err = r.DelUnusedExemptions(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, removed)
			require.NoError(t, r.Check(t.Context(), exemptions(c.used)))
			require.ErrorIs(t, r.Check(t.Context(), exemptions(c.unused)), ErrMissing)

			require.NoError(t, r.Del(t.Context(), masqueraded))
			removed, err = r.DelUnusedExemptions(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, removed)
			require.ErrorIs(t, r.Check(t.Context(), exemptions(c.used)), ErrMissing)
		})
	}
}

// TestTableWithoutExempt: an older version has made the table.
func TestTableWithoutExempt(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), example(1, "ip")))
	nft(t, "flush chain ip allocnet postrouting; flush chain ip allocnet untranslated; delete set ip allocnet exempt; list tables")
	require.NoError(t, r.Del(t.Context(), example(1, "ip")))
	e := exemptions("10.1.0.0/16 10.0.0.0/8")
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Check(t.Context(), e))
	require.Contains(t, nft(t, "list chain ip allocnet postrouting"), "@exempt return")
}

func TestInvalidExemptions(t *testing.T) {
	r := open(t)
	for _, pair := range []string{"10.1.0.0/16 fd00::/8", "fd00::/8 10.1.0.0/16"} {
		require.ErrorContains(t, r.Add(t.Context(), exemptions(pair)), "are not networks of one family")
	}
	require.ErrorContains(t, r.Add(t.Context(), &Elements{Exempt: []Exemption{{}}}), "are not networks of one family")
	require.Empty(t, nft(t, "list", "ruleset"))
}

// TestSmallerNetworkIsMissing: CHECK notices a network of which only a part is there.
func TestSmallerNetworkIsMissing(t *testing.T) {
	r := open(t)
	e := &Elements{Owner: owner("a"), Masquerade: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/16")}}
	require.NoError(t, r.Add(t.Context(), e))
	nft(t, "flush set ip allocnet networks; add element ip allocnet networks { 10.1.0.0/24 . 10.1.0.0/24 }; list tables")
	require.ErrorContains(t, r.Check(t.Context(), e), "network 10.1.0.0-10.1.255.255 (there is network 10.1.0.0-10.1.0.255)")
	require.NoError(t, r.Add(t.Context(), e))
	require.NoError(t, r.Check(t.Context(), e))
}
