package telemetry

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/allocnet/allocnet/configurator"
)

// BenchmarkOperation measures the cost of observing a setup with five steps, as
// with the native engine.
func BenchmarkOperation(b *testing.B) {
	for _, bench := range []struct {
		name        string
		subscribers int
		exporter    sdktrace.SpanExporter
	}{
		{"metrics and events", 0, nil},
		{"ten that never read", 10, nil},
		{"spans", 0, tracetest.NewNoopExporter()},
	} {
		b.Run(bench.name, func(b *testing.B) {
			t := newTelemetry(Options{}, bench.exporter, time.Now)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			for range bench.subscribers {
				t.Events().Subscribe(ctx, 0)
			}
			o, networks := t.Observer(), []string{"blue"}
			step := func(ctx context.Context, name string) context.Context {
				s := configurator.Step{Operation: "setup", Name: name, ID: "alloc"}
				ctx = o.Begin(ctx, s)
				s.Networks, s.Engine = networks, configurator.EngineNative
				if name != "" {
					o.End(ctx, s, nil)
				}
				return ctx
			}
			whole := configurator.Step{Operation: "setup", ID: "alloc", Networks: networks, Engine: configurator.EngineNative}
			b.ReportAllocs()
			for b.Loop() {
				ctx := step(ctx, "")
				for _, name := range []string{
					configurator.StepLock, configurator.StepPlan, configurator.StepReserve, configurator.StepAdd, configurator.StepRecord,
				} {
					step(ctx, name)
				}
				o.End(ctx, whole, nil)
			}
			b.StopTimer()
			require.NoError(b, t.Shutdown(context.Background()))
		})
	}
}
