package ruleset

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkElements measures the elements of an allocation with one port as tcp
// and udp, with no and with many others present.
func BenchmarkElements(b *testing.B) {
	for _, present := range []int{0, 20000} {
		for name, families := range map[string][]string{"ip": {"ip"}, "dual": {"ip", "ip6"}} {
			b.Run(fmt.Sprintf("%d %s", present, name), func(b *testing.B) {
				r := open(b)
				for i := range present {
					require.NoError(b, r.Add(b.Context(), example(10000+i)))
				}
				e := example(1, families...)
				require.NoError(b, r.Add(b.Context(), e)) // creates the tables
				require.NoError(b, r.Del(b.Context(), e))
				var adds, checks, dels []time.Duration
				timed := func(list *[]time.Duration, call func(context.Context, *Elements) error) {
					start := time.Now()
					err := call(b.Context(), e)
					*list = append(*list, time.Since(start))
					require.NoError(b, err)
				}
				for b.Loop() {
					timed(&adds, r.Add)
					timed(&checks, r.Check)
					timed(&dels, r.Del)
				}
				for name, list := range map[string][]time.Duration{"add": adds, "check": checks, "del": dels} {
					slices.Sort(list)
					b.ReportMetric(float64(list[len(list)/2].Nanoseconds())/1000, name+"-p50-µs")
				}
			})
		}
	}
}
