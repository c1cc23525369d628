package integration

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	gocni "github.com/containerd/go-cni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// BenchmarkExec compares an allocation's life through allocnet with the bare
// go-cni calls for the same chain, in turns, and reports medians and ratios.
func BenchmarkExec(b *testing.B) {
	h := newHost(b, configurator.EngineExec)
	h.network("net", chain("bridge", dual, "iptables")...)
	a := h.alloc("bench")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "bare", "plugins": chain("bridge", dual, "iptables")})
	require.NoError(b, err)
	bare, err := gocni.New(gocni.WithPluginDir([]string{pluginDir}), gocni.WithConfListBytes(conf))
	require.NoError(b, err)
	mappings, err := portmap.Mappings(a.Ports, portmap.Options{})
	require.NoError(b, err)
	ports := gocni.WithCapability("portMappings", mappings)

	times := map[string][]float64{}
	measure := func(name string, op func() error) {
		start := time.Now()
		require.NoError(b, op())
		times[name] = append(times[name], float64(time.Since(start))/float64(time.Millisecond))
	}
	ctx := context.Background()
	for b.Loop() {
		measure("gocni-ADD", func() error { _, err := bare.Setup(ctx, a.ID, a.Netns, ports); return err })
		measure("gocni-DEL", func() error { return bare.Remove(ctx, a.ID, a.Netns, ports) })
		measure("allocnet-ADD", func() error { _, err := h.Setup(ctx, a); return err })
		measure("allocnet-DEL", func() error { return h.Teardown(ctx, configurator.Allocation{ID: a.ID}) })
	}
	for name := range times {
		slices.Sort(times[name])
		b.ReportMetric(median(times[name]), name+"-ms")
	}
	for _, op := range []string{"ADD", "DEL"} {
		b.ReportMetric(median(times["allocnet-"+op])/median(times["gocni-"+op]), op+"-ratio")
	}
}

func median(sorted []float64) float64 { return sorted[len(sorted)/2] }
