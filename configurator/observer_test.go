package configurator

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// observed records the calls of an Observer.
type observed struct {
	mu    sync.Mutex
	lines []string
}

type observedKey struct{}

func (o *observed) Begin(ctx context.Context, s Step) context.Context {
	o.note("begin", s, "")
	return context.WithValue(ctx, observedKey{}, s.Operation+"/"+s.Name)
}

func (o *observed) End(ctx context.Context, s Step, err error) {
	if ctx.Value(observedKey{}) != s.Operation+"/"+s.Name {
		o.note("foreign context", s, "")
	}
	outcome := "ok"
	if err != nil {
		outcome, _, _ = strings.Cut(err.Error(), "\n")
	}
	o.note("end", s, " "+strings.Join(s.Networks, ",")+" "+string(s.Engine)+": "+outcome)
}

func (o *observed) note(what string, s Step, more string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, fmt.Sprintf("%s %s/%s %s%s", what, s.Operation, s.Name, s.ID, more))
}

// take returns the ends since the last call, without trailing spaces.
func (o *observed) take() []string {
	var ends []string
	for _, line := range o.lines {
		if !strings.HasPrefix(line, "begin") {
			ends = append(ends, strings.TrimPrefix(line, "end "))
		}
	}
	o.lines = nil
	return ends
}

func TestObserver(t *testing.T) {
	o := &observed{}
	h := newTestHost(t, func(c *Config) { c.Observer = o })
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 100, Msg: "not yet", Only: 1}}))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{
		"setup/lock a  : ok", "setup/plan a net exec: ok", "setup/reserve a net exec: ok",
		`setup/add a net exec: ADD allocation "a": plugin type="one" failed (add): not yet`,
		"setup/del a net exec: ok", "setup/audit a net exec: ok", "setup/roll back a net exec: ok", "setup/wait a net exec: ok",
		"setup/add a net exec: ok", "setup/record a net exec: ok", "setup/ a net exec: ok",
	}, o.take())

	require.NoError(t, h.Check(t.Context(), a))
	require.Equal(t, []string{"check/lock a  : ok", "check/check a net exec: ok", "check/ a net exec: ok"}, o.take())

	report, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Healthy)
	require.Equal(t, []string{"repair/lock a  : ok", "repair/check a net exec: ok", "repair/   : ok"}, o.take())

	h.network("net", "1.0.0", adds(behaviours{"DEL": fakeplugin.Behaviour{Code: 100, Msg: "stuck"}}))
	b := h.alloc("b")
	_, err = h.Setup(t.Context(), b)
	require.NoError(t, err)
	o.take()
	require.ErrorIs(t, h.Teardown(t.Context(), b), ErrIncomplete)
	ends := o.take()
	require.Equal(t, "teardown/lock b  : ok", ends[0])
	require.Contains(t, ends[1], "teardown/del b net exec: DEL allocation")
	require.Equal(t, "teardown/audit b net exec: ok", ends[2])
	require.Contains(t, ends[3], "teardown/force b net exec: DEL allocation")
	require.Contains(t, ends[4], "teardown/ b net exec: allocation")
	require.Len(t, ends, 5)

	_, err = h.GC(t.Context(), []string{"b"})
	require.NoError(t, err)
	require.Equal(t, []string{"gc/lock a  : ok", "gc/del a net exec: ok", "gc/audit a net exec: ok", "gc/   : ok"}, o.take())
}

// argsOf records the CNI_ARGS of operations that end.
type argsOf struct {
	observed
	of map[string]map[string]string
}

func (o *argsOf) End(_ context.Context, s Step, _ error) {
	if s.Name == "" {
		o.of[s.Operation] = s.Args
	}
}

// TestObserverIsToldArgs: the Observer gets the arguments at the end of every
// operation on an allocation.
func TestObserverIsToldArgs(t *testing.T) {
	o := &argsOf{of: map[string]map[string]string{}}
	h := newTestHost(t, func(c *Config) { c.Observer = o })
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Args = map[string]string{"K8S_POD_NAME": "web-1"}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), Allocation{ID: "a"}))
	_, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
	require.Equal(t, map[string]map[string]string{"setup": a.Args, "check": a.Args, "repair": nil, "teardown": a.Args}, o.of)
}

// TestSuccessIsLogged: success is logged at level debug, with one line per
// operation.
func TestSuccessIsLogged(t *testing.T) {
	var log bytes.Buffer
	logger := hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Debug})
	h := newTestHost(t, func(c *Config) { c.Logger = logger })
	h.network("net", "1.0.0", adds())
	a := h.alloc("c")
	a.ID, a.ContainerID, a.Interface = "c.eth0", "c", "eth0"
	do := func(operation string, err error) {
		t.Helper()
		require.NoError(t, err)
		require.Regexp(t, `(?m)^.* \[DEBUG\] operation succeeded: operation=`+operation+` alloc=c\.eth0 container=c networks=\["?net"?\] engine=exec took=\S+$`, log.String())
		require.Equal(t, 1, strings.Count(log.String(), "operation succeeded"))
		log.Reset()
	}
	_, err := h.Setup(t.Context(), a)
	do("setup", err)
	do("check", h.Check(t.Context(), a))
	do("teardown", h.Teardown(t.Context(), a))
	logger.SetLevel(hclog.Info)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NotContains(t, log.String(), "succeeded")
}
