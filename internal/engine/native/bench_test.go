package native_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
)

// BenchmarkGuardedBridge measures ADD, CHECK and DEL of a bridge with masquerading and the source
// guard, whose elements share one transaction.
func BenchmarkGuardedBridge(b *testing.B) {
	h := newTestHost(b)
	r := h.request(network(b, "net", "1.0.0", nil, h.bridged("br0", "10.9.0.0/16")))
	took := map[string][]time.Duration{}
	for b.Loop() {
		for _, call := range []struct {
			name string
			do   func(context.Context, *engine.Request) error
		}{
			{"add", func(ctx context.Context, r *engine.Request) error {
				results, err := h.Add(ctx, r)
				if err == nil {
					r.Attachments[0].Result = results[0]
				}
				return err
			}},
			{"check", h.Check}, {"del", h.Del},
		} {
			start := time.Now()
			err := call.do(b.Context(), r)
			took[call.name] = append(took[call.name], time.Since(start))
			require.NoError(b, err)
		}
		r.Attachments[0].Result = nil
	}
	for name, list := range took {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Microseconds()), name+"-p50-µs")
	}
}
