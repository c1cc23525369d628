package configurator

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/record"
)

// errKilled is the panic of a process that dies in the middle of an operation.
var errKilled = errors.New("killed")

// dyingEngine runs each ADD and then a function of the test.
type dyingEngine struct {
	nativeEngine
	afterAdd func(add int, results []*types100.Result) error
	adds     int
}

func (e *dyingEngine) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	results, err := e.nativeEngine.Add(ctx, r)
	if err != nil {
		return results, err
	}
	e.adds++
	return results, e.afterAdd(e.adds, results)
}

// interruptedHost returns a host with two native networks, whose leases are in
// the returned directory.
func interruptedHost(t *testing.T) (h *testHost, leases string) {
	h, leases = nativeHost(t, "1.0.0", `{"type":"firewall"}`)
	h.file("second.conflist", `{"cniVersion":"1.0.0","name":"second","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.78.0.0/24"}},{"type":"firewall"}]}`)
	return h, leases
}

// requireRemovable checks the record that a killed Setup leaves, tears the
// allocation down as the next process would, and checks that nothing is left.
func requireRemovable(t *testing.T, h *testHost, leases string) {
	t.Helper()
	r, err := h.store.Get("a")
	require.NoError(t, err)
	require.Equal(t, record.Adding, r.Phase)
	require.Empty(t, r.Addresses, "the record of an attempt has nothing of an earlier one")
	for _, a := range r.Attachments {
		require.Nil(t, a.Result, "the record of an attempt has nothing of an earlier one")
	}
	require.NoError(t, h.restarted().Teardown(t.Context(), Allocation{ID: "a"}))
	h.requireNoRecords()
	for _, network := range []string{"net", "second"} {
		owners, err := cleanup.Owners(t.Context(), network, h.cfg.StateDir)
		require.NoError(t, err)
		require.Empty(t, owners, network)
		files, err := filepath.Glob(filepath.Join(leases, network, "10.*"))
		require.NoError(t, err)
		require.Empty(t, files)
	}
}

// TestKilledWhileSettingUpAgain: the second ADD gets another address, which the
// result of the first one does not contain.
func TestKilledWhileSettingUpAgain(t *testing.T) {
	h, leases := interruptedHost(t)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.deleteVeth(a.ID)
	h.native = &dyingEngine{nativeEngine: h.native, afterAdd: func(int, []*types100.Result) error { panic(errKilled) }}
	require.PanicsWithValue(t, errKilled, func() { _, _ = h.Setup(t.Context(), a) })
	requireRemovable(t, h, leases)
}

// TestKilledWhileTryingAgain kills the process after an attempt of which one
// network's result and the other network's address are known.
func TestKilledWhileTryingAgain(t *testing.T) {
	h, leases := interruptedHost(t)
	a := h.alloc("a")
	a.Networks = []string{"net", "second"}
	h.native = &dyingEngine{nativeEngine: h.native, afterAdd: func(add int, results []*types100.Result) error {
		if add > 1 {
			panic(errKilled)
		}
		results[1] = nil
		return errors.New("the first attempt fails")
	}}
	require.PanicsWithValue(t, errKilled, func() { _, _ = h.Setup(t.Context(), a) })
	requireRemovable(t, h, leases)
}

// TestInterruptedIsAudited: an audit follows whatever DEL returns. An
// acknowledged removal of what the record names need not include everything
// that the killed process made.
func TestInterruptedIsAudited(t *testing.T) {
	h, _ := interruptedHost(t)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	first, err := h.store.Get("a")
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
	_, err = h.Setup(t.Context(), a) // assigns another address
	require.NoError(t, err)
	first.Phase = record.Adding
	require.NoError(t, h.store.Put(first))
	require.NoError(t, h.Teardown(t.Context(), a))
	h.requireNoRecords()
	owners, err := cleanup.Owners(t.Context(), "net", h.cfg.StateDir)
	require.NoError(t, err)
	require.Empty(t, owners)
}
