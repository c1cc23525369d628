package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

// kept returns all kept events as JSON without ID.
func (r *rig) kept(t *testing.T) (list []string) {
	t.Helper()
	s := r.events.after(r.events.first - 1)
	for {
		e, wake := s.take()
		if wake != nil {
			return list
		}
		e.ID = 0
		line, err := json.Marshal(e)
		require.NoError(t, err)
		list = append(list, string(line))
	}
}

func TestEvents(t *testing.T) {
	r := newRig(Options{})
	const ms = time.Millisecond
	r.operate("setup", "a", "native", []string{"blue"}, nil, part{configurator.StepLock, 0, nil},
		part{configurator.StepAdd, 2 * ms, errors.New(`bridge: {"key":"secret"}: no`)}, part{configurator.StepAdd, 3 * ms, nil})
	r.operate("teardown", "b", "exec", nil, fmt.Errorf("x: %w", configurator.ErrIncomplete))
	r.OnForced("a", []configurator.Leftover{{Kind: cleanup.KindLink, Network: "blue", Object: "veth0"}})
	r.Reloaded(errors.New("a.hcl:3: no"))
	r.Configured("blue", "/etc/cni/net.d/b.conflist", nil, nil)
	r.Configured("", "", errors.New("no network"), []error{errors.New("x.conflist: broken")})
	at := `{"time":"2026-03-01T12:00:00.005Z","type":`
	require.Equal(t, []string{
		at + `"operation","data":{"operation":"setup","id":"a","networks":["blue"],"engine":"native","seconds":0.005,"outcome":"ok","steps":[` +
			`{"step":"lock","at":0,"seconds":0,"outcome":"ok"},` +
			`{"step":"add","at":0,"seconds":0.002,"outcome":"error","error":"bridge: {...}: no"},` +
			`{"step":"add","at":0.002,"seconds":0.003,"outcome":"ok"}]}}`,
		at + `"operation","data":{"operation":"teardown","id":"b","engine":"exec","seconds":0,"outcome":"incomplete",` +
			`"error":"x: not everything could be removed; the record is kept"}}`,
		at + `"forced","data":{"id":"a","removed":[{"kind":"link","network":"blue","object":"veth0"}]}}`,
		at + `"reload","data":{"error":"a.hcl:3: no"}}`,
		at + `"configuration","data":{"primary":"blue","file":"/etc/cni/net.d/b.conflist"}}`,
		at + `"configuration","data":{"notReady":"no network","problems":["x.conflist: broken"]}}`,
	}, r.kept(t))
}

// TestStepsOfManyAllocations: steps are assigned to their allocation, and
// bounded.
func TestStepsOfManyAllocations(t *testing.T) {
	r := newRig(Options{})
	o := r.Observer()
	whole := configurator.Step{Operation: "gc"}
	ctx := o.Begin(t.Context(), whole)
	for i := range maxSteps + 3 {
		s := configurator.Step{Operation: "gc", Name: configurator.StepDel, ID: fmt.Sprint("a", i)}
		o.End(o.Begin(ctx, s), s, errors.New(strings.Repeat("x", 5000)))
	}
	late := o.Begin(ctx, configurator.Step{Operation: "gc", Name: configurator.StepDel})
	o.End(ctx, whole, nil)
	o.End(late, configurator.Step{Operation: "gc", Name: configurator.StepDel}, nil)
	e, _ := r.events.after(r.events.first - 1).take()
	d := e.Data.(client.Operation)
	require.Len(t, d.Steps, maxSteps)
	require.Equal(t, 3, d.Omitted)
	require.Equal(t, "a1", d.Steps[1].ID)
	require.Len(t, d.Steps[1].Error, maxStepErrorText)
}

// TestEventsKeepNothingOfOthers: events do not share slices with the
// configurator.
func TestEventsKeepNothingOfOthers(t *testing.T) {
	r := newRig(Options{})
	networks, removed := []string{"blue"}, []configurator.Leftover{{Kind: cleanup.KindLink}}
	r.operate("setup", "a", "native", networks, nil)
	r.OnForced("a", removed)
	before := r.kept(t)
	networks[0], removed[0].Kind = "red", cleanup.KindLease
	require.Equal(t, before, r.kept(t))
}

// TestArgsInEvents: events contain the arguments of the operation, bounded.
func TestArgsInEvents(t *testing.T) {
	r := newRig(Options{})
	end := func(args map[string]string) map[string]string {
		s := configurator.Step{Operation: "setup", ID: "a"}
		ctx := r.Observer().Begin(t.Context(), s)
		s.Args = args
		r.Observer().End(ctx, s, nil)
		kept := r.kept(t)
		var e struct{ Data client.Operation }
		require.NoError(t, json.Unmarshal([]byte(kept[len(kept)-1]), &e))
		return e.Data.Args
	}
	pod := map[string]string{"K8S_POD_NAME": "web-1", "K8S_POD_NAMESPACE": "shop"}
	require.Equal(t, pod, end(pod))
	require.Nil(t, end(nil))
	long := map[string]string{"LONG": strings.Repeat("x", 100_000), "LONGER": strings.Repeat("x", 100_001), "K8S_POD_NAME": "web-1"}
	require.Equal(t, map[string]string{"K8S_POD_NAME": "web-1"}, end(long))
}

// TestObserverOfStrangers: a step without an operation is counted, an end
// without a beginning is not.
func TestObserverOfStrangers(t *testing.T) {
	r := newRig(Options{})
	o, s := r.Observer(), configurator.Step{Operation: "setup", Name: configurator.StepAdd}
	o.End(o.Begin(t.Context(), s), s, nil)
	o.End(context.Background(), configurator.Step{Operation: "setup"}, nil)
	require.Equal(t, []string{
		`operation_step_duration_seconds_sum{operation="setup",step="add"} 0`,
		`operation_step_duration_seconds_count{operation="setup",step="add"} 1`,
	}, r.series(t, "operation"))
	require.Empty(t, r.kept(t))
}

// TestContextsGoOn: derived contexts keep the caller's values and its end.
func TestContextsGoOn(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	o := newRig(Options{}).Observer()
	inner := o.Begin(o.Begin(ctx, configurator.Step{Operation: "gc"}), configurator.Step{Operation: "gc", Name: "del"})
	require.Equal(t, "value", inner.Value(key{}))
	cancel()
	require.ErrorIs(t, inner.Err(), context.Canceled)
}
