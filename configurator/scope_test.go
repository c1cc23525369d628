package configurator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// TestGCKeepsToItsNetworks: others in the directory may be another runtime's,
// whose attachments are in no record of ours.
func TestGCKeepsToItsNetworks(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Network = "ours" })
	w.network("ours", "1.1.0", adds())
	w.network("theirs", "1.1.0", adds(), behaviours{})
	_, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"one GC"}, w.commands())
}

// TestGCHoldsUpNobody where no plugin knows GC: it does not wait for operations
// that run, and they do not wait for it.
func TestGCHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	unlock, err := w.store.Lock(t.Context(), "busy")
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = w.GC(ctx, nil)
	require.NoError(t, err)
}

func TestRecordOfAnUnknownEngine(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	r, err := w.store.Get("a")
	require.NoError(t, err)
	r.Engine = "warp"
	require.NoError(t, w.store.Put(r))
	w.commands()

	require.ErrorIs(t, w.Check(t.Context(), a), ErrNotChecked)
	_, err = w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrNotChecked)
	require.ErrorContains(t, err, `"warp"`)
	require.ErrorIs(t, w.Teardown(t.Context(), a), ErrIncomplete)
	require.Empty(t, w.commands())
}

// TestTeardownThatFailsWithoutRecordLeavesOne, so that GC goes on with it.
func TestTeardownThatFailsWithoutRecordLeavesOne(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble", Only: 1}}))
	require.ErrorIs(t, w.Teardown(t.Context(), Allocation{ID: "lost"}), ErrIncomplete)
	r, err := w.Get("lost")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)
	report, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"lost"}, report.Removed)
}

// TestSameAllocationAfterARestart: what the configuration makes of its ports, and
// what they are called, does not make it another one.
func TestSameAllocationAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Label: "http", Value: 80, HostIP: "192.0.2.1"}}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.cfg.IgnorePortMappingHostIP = true
	w.cfg.Networks = nil
	w.Configurator = newConfigurator(t, w.cfg)
	a.Ports[0].Label = "web"
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one CHECK"}, w.commands())
}
