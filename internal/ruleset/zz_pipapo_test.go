package ruleset

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestZZPipapo(t *testing.T) {
	for _, present := range []int{0, 4000, 20000} {
		for _, v6 := range []bool{false, true} {
			r := open(t)
			tb := ip
			mk := func(i int) element {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 16)
				if v6 {
					tb = ip6
					p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), 64)
				}
				e := element{set: tb.networks}
				a, s, l := p.Addr().AsSlice(), p.Masked().Addr().AsSlice(), last(p.Masked())
				n := copy(e.key[:], a)
				copy(e.key[n:], s)
				copy(e.end[:], a)
				copy(e.end[n:], l)
				return e
			}
			require.NoError(t, r.ensureTable(t.Context(), ip))
			require.NoError(t, r.ensureTable(t.Context(), ip6))
			for i := 0; i < present; i += 500 {
				var c change
				for j := range 500 {
					c.add = append(c.add, mk(1+i+j))
				}
				require.NoError(t, r.apply(t.Context(), c))
			}
			var adds, dels []time.Duration
			e := mk(60000)
			for range 200 {
				s := time.Now()
				require.NoError(t, r.apply(t.Context(), change{add: []element{e}}))
				adds = append(adds, time.Since(s))
				s = time.Now()
				require.NoError(t, r.apply(t.Context(), change{remove: []element{e}}))
				dels = append(dels, time.Since(s))
			}
			slices.Sort(adds)
			slices.Sort(dels)
			t.Log("present", present, "v6", v6, "add p50", adds[100], "del p50", dels[100])
		}
	}
}
