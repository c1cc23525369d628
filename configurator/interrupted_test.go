package configurator

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/record"
)

// errKilled is the panic of a process that dies in the middle of an operation.
var errKilled = errors.New("killed")

// dyingEngine does each ADD, and then what the test wants.
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

// interruptedWorld is a host with two native networks, which lease from the
// directory that is returned.
func interruptedWorld(t *testing.T) (w *world, leases string) {
	w, leases = nativeWorld(t, "1.0.0", `{"type":"firewall"}`)
	w.file("second.conflist", `{"cniVersion":"1.0.0","name":"second","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.78.0.0/24"}},{"type":"firewall"}]}`)
	return w, leases
}

// requireRemovable looks at the record that a killed Setup leaves, takes the
// allocation down as the next process would, and finds nothing left of it.
func requireRemovable(t *testing.T, w *world, leases string) {
	t.Helper()
	r, err := w.store.Get("a")
	require.NoError(t, err)
	require.Equal(t, record.Adding, r.Phase)
	require.Empty(t, r.Addresses, "the record of an attempt has nothing of an earlier one")
	for _, a := range r.Attachments {
		require.Nil(t, a.Result, "the record of an attempt has nothing of an earlier one")
	}
	require.NoError(t, w.restarted().Teardown(t.Context(), Allocation{ID: "a"}))
	w.requireNoRecords()
	for _, network := range []string{"net", "second"} {
		owners, err := cleanup.Owners(t.Context(), network, w.cfg.StateDir)
		require.NoError(t, err)
		require.Empty(t, owners, network)
		files, err := filepath.Glob(filepath.Join(leases, network, "10.*"))
		require.NoError(t, err)
		require.Empty(t, files)
	}
}

// TestKilledWhileSettingUpAgain: the second ADD gets another address, of which
// the result of the first one says nothing.
func TestKilledWhileSettingUpAgain(t *testing.T) {
	w, leases := interruptedWorld(t)
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	bridge, err := netlink.LinkByName("brtest")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(bridge))
	w.native = &dyingEngine{nativeEngine: w.native, afterAdd: func(int, []*types100.Result) error { panic(errKilled) }}
	require.PanicsWithValue(t, errKilled, func() { _, _ = w.Setup(t.Context(), a) })
	requireRemovable(t, w, leases)
}

// TestKilledWhileTryingAgain, after an attempt of which the result of one network
// is known, and the address of another.
func TestKilledWhileTryingAgain(t *testing.T) {
	w, leases := interruptedWorld(t)
	a := w.alloc("a")
	a.Networks = []string{"net", "second"}
	w.native = &dyingEngine{nativeEngine: w.native, afterAdd: func(add int, results []*types100.Result) error {
		if add > 1 {
			panic(errKilled)
		}
		results[1] = nil
		return errors.New("the first attempt fails")
	}}
	require.PanicsWithValue(t, errKilled, func() { _, _ = w.Setup(t.Context(), a) })
	requireRemovable(t, w, leases)
}

// TestInterruptedIsAudited whatever DEL says: an acknowledged removal of what the
// record names is not one of what the process made that died.
func TestInterruptedIsAudited(t *testing.T) {
	w, _ := interruptedWorld(t)
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	first, err := w.store.Get("a")
	require.NoError(t, err)
	require.NoError(t, w.Teardown(t.Context(), a))
	_, err = w.Setup(t.Context(), a) // with another address
	require.NoError(t, err)
	first.Phase = record.Adding
	require.NoError(t, w.store.Put(first))
	require.NoError(t, w.Teardown(t.Context(), a))
	w.requireNoRecords()
	owners, err := cleanup.Owners(t.Context(), "net", w.cfg.StateDir)
	require.NoError(t, err)
	require.Empty(t, owners)
}
