package hoststatus

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

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
