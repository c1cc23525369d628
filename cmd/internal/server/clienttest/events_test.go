package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/cmd/internal/telemetry"
	"github.com/allocnet/allocnet/configurator"
)

// TestEventsOfOperations reads the events that the daemon publishes about operations.
func TestEventsOfOperations(t *testing.T) {
	watch, err := telemetry.New(telemetry.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, watch.Shutdown(context.Background())) })
	h := newHost(t, func(cfg *configurator.Config) { cfg.Observer = watch.Observer() })
	c := h.serve(t, func(o *api.Options) {
		o.Events, o.Metrics, o.Queue = watch.Events().Subscribe, watch.Handler(), watch.Queue()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := configurator.Allocation{ID: "a", Netns: netns(t)("a")}
	_, err = c.Setup(ctx, a)
	require.NoError(t, err)
	watch.Reloaded(errors.New("why"))
	watch.OnForced("a", []configurator.Leftover{{Kind: "lease", Object: "x"}})
	watch.Configured("net", "/conf/net", errors.New("not yet"), []error{errors.New("bad")})
	heal := client.Heal{Cause: "rules", Change: "flush", Restored: 2, Allocs: []string{"a"}, Unhealthy: "u", Error: "e", Seconds: 1, BackOff: 2}
	watch.Healed(heal)
	_, err = c.Setup(ctx, configurator.Allocation{ID: "b", Netns: netns(t)("b"), Networks: []string{apitest.Failing}})
	require.Error(t, err)
	require.NoError(t, c.Teardown(ctx, a))

	var got []client.Event
	for e, err := range c.Events(ctx, 1) { // from the oldest kept event
		require.NoError(t, err)
		got = append(got, e)
		if done, ok := e.Data.(*client.Operation); ok && done.Operation == "teardown" && e.Type == "operation" {
			break
		}
	}
	require.Equal(t, &client.Lost{Restarted: true}, got[0].Data)
	set := got[1].Data.(*client.Operation)
	require.Equal(t, []string{"setup", "a", "net", "ok"}, []string{set.Operation, set.ID, set.Networks[0], set.Outcome})
	require.Positive(t, set.Seconds)
	var steps []string
	for _, s := range set.Steps {
		steps = append(steps, s.Step)
	}
	require.Equal(t, []string{"lock", "plan", "reserve", "add", "record"}, steps)
	require.Equal(t, &client.Reload{Error: "why"}, got[2].Data)
	require.Equal(t, &client.Forced{ID: "a", Removed: []configurator.Leftover{{Kind: "lease", Object: "x"}}}, got[3].Data)
	require.Equal(t, &client.Configuration{Primary: "net", File: "/conf/net", NotReady: "not yet", Problems: []string{"bad"}}, got[4].Data)
	require.Equal(t, &heal, got[5].Data)
	failed := got[6].Data.(*client.Operation)
	require.Contains(t, failed.Error, "no good")
	require.Contains(t, fmt.Sprint(failed.Steps), "no good")
	for i, e := range got[2:] {
		require.Equal(t, got[i+1].ID+1, e.ID)
	}
}
