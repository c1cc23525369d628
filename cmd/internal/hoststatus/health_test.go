package hoststatus

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// knowing is what a daemon knows.
type knowing map[string]string

func (k knowing) Damage(id string) (string, bool) { found, is := k[id]; return found, is }
func (k knowing) Found(id string, err error) {
	delete(k, id)
	if err != nil {
		k[id] = err.Error()
	}
}
func (k knowing) NotChecked(string) {}

// TestKnownDamage: an allocation that was not checked in time, and that the daemon knows to be unhealthy, is
// unhealthy. What was looked at is known then.
func TestKnownDamage(t *testing.T) {
	conf, err := configurator.New(configurator.Config{StateDir: filepath.Join(t.TempDir(), "state"), OneShot: true})
	require.NoError(t, err)
	known := knowing{"bad": "the route is missing", "gone": "x"}
	o := Options{Service: conf, Known: known}
	records := []configurator.Record{{ID: "bad", Phase: configurator.PhaseReady}, {ID: "unknown", Phase: configurator.PhaseReady}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s := &client.HostStatus{}
	o.addHealth(ended, s, records)
	require.Equal(t, client.AllocationCounts{Total: 2, Unhealthy: 1, Unchecked: 1}, s.Allocations)
	require.Equal(t, []client.Drift{{ID: "bad", Error: "the route is missing"}}, s.Drift)
	require.Equal(t, []string{"unknown"}, s.Unchecked)
	o.addHealth(t.Context(), &client.HostStatus{}, []configurator.Record{{ID: "gone", Phase: configurator.PhaseReady}})
	require.Equal(t, knowing{"bad": "the route is missing"}, known, "it has no record any more")
}

// TestPartsThatHang: the overview has what could be read in time, and says what is missing.
func TestPartsThatHang(t *testing.T) {
	hangs := make(chan struct{})
	defer close(hangs)
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "allocs"), nil, 0o600)) // not a directory
	conf, err := configurator.New(configurator.Config{StateDir: dir, OneShot: true})
	require.NoError(t, err)
	s := Collect(t.Context(), Options{
		Service: conf, Time: 500 * time.Millisecond,
		Networks: func() ([]*conflist.Network, []*conflist.FileError) { return nil, nil },
		Ready: func(context.Context) []readiness.Check {
			<-hangs
			return nil
		},
	})
	require.Equal(t, []string{"allocations", "ready"}, s.Unread)
	require.Nil(t, s.Ready)
	require.Len(t, s.Problems, 2)
	require.Contains(t, s.Problems[0], dir)
	require.Equal(t, "ready: not read within 500ms: the host is overloaded, or a program hangs", s.Problems[1])
	require.NotEmpty(t, s.Networks)
	require.NotEmpty(t, s.Versions.Kernel)
}

// TestTornDownMeanwhile: allocations that were torn down since their records were read are none any
// more. Without the time to find that out, they count as their records say.
func TestTornDownMeanwhile(t *testing.T) {
	conf, err := configurator.New(configurator.Config{StateDir: filepath.Join(t.TempDir(), "state"), OneShot: true})
	require.NoError(t, err)
	o := Options{Service: conf}
	records := []configurator.Record{
		{ID: "ready", Phase: configurator.PhaseReady},
		{ID: "gone", Phase: configurator.PhaseReady, NetnsGone: true},
		{ID: "leaving", Phase: configurator.PhaseDeleting},
	}
	count := func(ctx context.Context) client.AllocationCounts {
		s := &client.HostStatus{Allocations: client.AllocationCounts{Total: len(records)}}
		o.addHealth(ctx, s, records)
		return s.Allocations
	}
	require.Equal(t, client.AllocationCounts{Total: 1, Deleting: 1}, count(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, client.AllocationCounts{Total: 3, Deleting: 1, NetnsGone: 1, Unchecked: 1}, count(ended))
}
