package configurator

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestAddressOfAnAllocation: if an allocation that is set up has a requested address, Setup fails
// after one ADD. It does not wait, also not for removals of other allocations.
func TestAddressOfAnAllocation(t *testing.T) {
	h, _ := bootHost(t, "")
	h.sleep = h.recordSleep
	h.backlog.quietTime, h.backlog.longestPause = time.Hour, time.Hour
	first, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	_, err = h.Setup(t.Context(), h.alloc("gone"))
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "gone"}))
	counting := &countingAdd{nativeEngine: h.native}
	h.native = counting
	b := h.alloc("b")
	for name, request := range map[string]func(*Allocation){
		"ips":         func(a *Allocation) { a.IPs = []string{first.Address} },
		"with prefix": func(a *Allocation) { a.IPs = []string{first.Address + "/24"} },
		"argument":    func(a *Allocation) { a.Args = map[string]string{"IP": first.Address} },
	} {
		t.Run(name, func(t *testing.T) {
			counting.calls = 0
			b := b
			request(&b)
			_, err := h.Setup(t.Context(), b)
			require.ErrorIs(t, err, ErrAddressUnavailable)
			require.Equal(t, 1, counting.calls)
			require.Empty(t, h.slept)
			require.Equal(t, 1, h.Pending(), "the removal was not awaited")
			require.False(t, h.store.Has("b"))
		})
	}
	h.native = counting.nativeEngine
	for _, id := range []string{"a", "b"} {
		require.NoError(t, h.Teardown(context.Background(), Allocation{ID: id}))
	}
	h.requireNoRecords()
}

// TestAddressOfARemoval: while another process removes the allocation that has a requested address,
// Setup tries again.
func TestAddressOfARemoval(t *testing.T) {
	h, _ := bootHost(t, "")
	other := h.booted("one")
	other.backlog.quietTime, other.backlog.longestPause = time.Hour, time.Hour
	first, err := other.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.NoError(t, other.Teardown(t.Context(), Allocation{ID: "a"}))
	require.Equal(t, 1, other.Pending())
	h.sleep = func(ctx context.Context, d time.Duration) error {
		other.backlog.settle(ctx, 0)
		return h.recordSleep(ctx, d)
	}
	b := h.alloc("b")
	b.IPs = []string{first.Address}
	second, err := h.Setup(t.Context(), b)
	require.NoError(t, err)
	require.Equal(t, first.Address, second.Address)
	require.Len(t, h.slept, 1)
	require.NoError(t, h.Teardown(context.Background(), b))
	h.requireNoRecords()
}

// TestFullRange: Setup does not wait for an address of a range that is in use, but it does while another process removes
// an allocation of the network.
func TestFullRange(t *testing.T) {
	h, _ := bootHost(t, "")
	file := filepath.Join(h.conf, "net.conflist")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	h.file("net.conflist", strings.Replace(string(text), "10.77.0.0/24", "10.77.0.0/29", 1))
	h.Configurator = h.booted("one")
	full := 0
	counting := &countingAdd{nativeEngine: h.native}
	h.native, h.sleep = counting, h.recordSleep
	for err == nil {
		full++
		require.Less(t, full, 9)
		counting.calls, h.slept = 0, nil
		_, err = h.Setup(t.Context(), Allocation{ID: fmt.Sprint("a", full), OwnNetns: true, Wait: true})
	}
	require.ErrorIs(t, err, ErrExhausted)
	require.Equal(t, 1, counting.calls)
	require.Empty(t, h.slept)

	other := h.booted("one")
	other.backlog.quietTime, other.backlog.longestPause = time.Hour, time.Hour
	require.NoError(t, other.Teardown(t.Context(), Allocation{ID: "a1", OwnNetns: true}))
	require.Equal(t, 1, other.Pending())
	h.sleep = func(ctx context.Context, d time.Duration) error {
		other.backlog.settle(ctx, 0)
		return h.recordSleep(ctx, d)
	}
	_, err = h.Setup(t.Context(), Allocation{ID: "last", OwnNetns: true})
	require.NoError(t, err)
	require.Len(t, h.slept, 1)
	require.NoError(t, h.Teardown(context.Background(), Allocation{ID: "last", OwnNetns: true, Wait: true}))
	for i := 2; i < full; i++ {
		require.NoError(t, h.Teardown(context.Background(), Allocation{ID: fmt.Sprint("a", i), OwnNetns: true, Wait: true}))
	}
	h.requireNoRecords()
}

// TestMissingFile: Setup does not try again if a file that the configuration names is missing.
func TestMissingFile(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	file := filepath.Join(h.conf, "net.conflist")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	h.file("net.conflist", strings.Replace(string(text), `"type":"host-local",`, `"type":"host-local","resolvConf":"/absent/resolv.conf",`, 1))
	h.Configurator = h.restarted()
	h.sleep = h.recordSleep
	_, err = h.Setup(t.Context(), h.alloc("a"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Empty(t, h.slept)
	h.requireNoRecords()
}

// countingAdd is an engine that counts its ADDs.
type countingAdd struct {
	nativeEngine
	calls int
}

func (c *countingAdd) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	c.calls++
	return c.nativeEngine.Add(ctx, r)
}

// TestAddressOfAnAllocationOfBinaries: host-local tells only in its text that an address is leased.
// Without an allocation that has the address, waiting may help.
func TestAddressOfAnAllocationOfBinaries(t *testing.T) {
	const taken = "requested IP address 127.0.0.1 is not available in range set 127.0.0.0-127.0.0.9"
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	h.commands()
	h.network("net", "1.0.0", behaviours{"ADD": fakeplugin.Behaviour{Code: 999, Msg: taken}})
	b := h.alloc("b")
	b.Args = map[string]string{"IP": "127.0.0.1"}
	_, err = h.Setup(t.Context(), b)
	require.ErrorIs(t, err, ErrAddressUnavailable)
	require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())

	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
	h.commands()
	_, err = h.Setup(t.Context(), b)
	require.ErrorIs(t, err, ErrAddressUnavailable)
	require.Equal(t, []string{"one ADD", "one DEL", "one ADD", "one DEL", "one ADD", "one DEL"}, h.commands())
}
