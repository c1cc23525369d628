package telemetry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// clock is a clock that the test advances.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// rig is a Telemetry with its own clock.
type rig struct {
	*Telemetry
	*clock
}

func newRig(o Options) *rig {
	c := newClock()
	return &rig{newTelemetry(o, nil, c.now), c}
}

// part is one step, its duration and its error.
type part struct {
	name string
	took time.Duration
	err  error
}

// operate calls the observer as the configurator does: the networks and the
// engine are known at the end.
func (r *rig) operate(operation, id, engine string, networks []string, err error, parts ...part) {
	o, whole := r.Observer(), configurator.Step{Operation: operation, ID: id}
	ctx := o.Begin(context.Background(), whole)
	for _, p := range parts {
		step := configurator.Step{Operation: operation, Name: p.name, ID: id}
		inner := o.Begin(ctx, step)
		r.add(p.took)
		step.Engine, step.Networks = configurator.Engine(engine), networks
		o.End(inner, step, p.err)
	}
	whole.Engine, whole.Networks = configurator.Engine(engine), networks
	o.End(ctx, whole, err)
}

// scrape returns allocnet's metrics as Prometheus gets them.
func (t *Telemetry) scrape(tb testing.TB) string {
	tb.Helper()
	answer := httptest.NewRecorder()
	t.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(tb, http.StatusOK, answer.Code, answer.Body)
	var ours strings.Builder
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), namespace+"_") {
			ours.WriteString(line)
		}
	}
	return ours.String()
}

// series returns the lines of scrape with a prefix, without comments and
// histogram buckets.
func (t *Telemetry) series(tb testing.TB, prefix string) []string {
	tb.Helper()
	var list []string
	for line := range strings.Lines(t.scrape(tb)) {
		if strings.HasPrefix(line, namespace+"_"+prefix) && !strings.Contains(line, "_bucket{") {
			list = append(list, strings.TrimPrefix(strings.TrimSpace(line), namespace+"_"))
		}
	}
	return list
}
