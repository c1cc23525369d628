package telemetry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Options are the options of New. The zero value is valid. The functions are called at
// each scrape, possibly concurrently.
type Options struct {
	// Version and Revision are the program's.
	Version, Revision string
	// Networks returns the active networks and the skipped files, as
	// conflist.Dir.Networks does. If it is nil, there are no metrics of leases and
	// files.
	Networks func() ([]*conflist.Network, []*conflist.FileError)
	// Allocations returns the number of allocations that have a record. If it is nil,
	// they are not counted.
	Allocations func() (int, error)
	// Pending returns the number of allocations whose teardown was acknowledged and that
	// are not yet deleted. If it is nil, they are not counted.
	Pending func() int
	// Pools returns the state of the pools of networks. If it is nil, there are no
	// metrics of pools.
	Pools func() []configurator.PoolStatus
	// Conntrack returns the number of tracked connections and its limit, as conntrack.Fill
	// does. If it is nil, there are no metrics of connection tracking.
	Conntrack func() (entries, limit int, err error)
	// Ownerless returns the number of leases without an owner of each network. It is called
	// after a scrape, at most every ownerlessTime. Networks that it omits have no metric. If
	// it is nil, leases without an owner are not counted.
	Ownerless func() (map[string]int, error)
	// Findings returns the number of findings of doctor by severity, and Ready whether each network is
	// ready, as 0 or 1: "" stands for the conditions of all networks. They are called after a scrape,
	// at most every findingsTime and readyTime. If they are nil, there are no such metrics.
	Findings, Ready func() (map[string]int, error)
	// Listeners returns the settings whose listeners the daemon has, with whether they could not be made;
	// nil for no such metrics.
	Listeners func() map[string]bool
	// NoHealth leaves out the numbers of unhealthy and of unchecked allocations, because nothing is checked
	// in the background.
	NoHealth bool
	// Links are read for the traffic of the networks; nil for no metrics of traffic.
	Links Links
	// Denied returns the packets that network policies have dropped, as ruleset.Dropped
	// does; nil for no metrics of policies.
	Denied func() ([]ruleset.Dropped, error)
	// TraceEndpoint is the URL to which spans are sent by OTLP over HTTP:
	// http[s]://HOST[:PORT][/PATH], default path /v1/traces. "" disables spans.
	// Headers, certificates and sampling are set by OpenTelemetry's environment
	// variables.
	TraceEndpoint string
	// KeptEvents is the number of events that are kept for subscribers; default 1024.
	KeptEvents int
	// Logger logs spans that cannot be delivered and metrics that cannot be gathered or
	// sent; default none.
	Logger hclog.Logger
}

// Telemetry collects metrics, events and spans. It is safe for concurrent use, and
// never waits for scrapes or subscribers.
type Telemetry struct {
	metrics *metrics
	handler http.Handler
	events  *Broker
	spans   *spans // nil for none
	now     func() time.Time
}

// New returns a Telemetry that counts from now on. The error concerns the form of the
// TraceEndpoint, which need not be reachable yet. The caller must call Shutdown.
func New(o Options) (*Telemetry, error) {
	var exporter sdktrace.SpanExporter
	if o.TraceEndpoint != "" {
		var err error
		if exporter, err = newExporter(o.TraceEndpoint); err != nil {
			return nil, err
		}
	}
	return newTelemetry(o, exporter, time.Now), nil
}

// newTelemetry creates spans only if exporter is not nil.
func newTelemetry(o Options, exporter sdktrace.SpanExporter, now func() time.Time) *Telemetry {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	m := newMetrics(o, now)
	t := &Telemetry{metrics: m, events: newBroker(o.KeptEvents, now), now: now}
	t.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            errorLog{o.Logger},
		ErrorHandling:       promhttp.ContinueOnError,
		Registry:            m.registry,
		MaxRequestsInFlight: 8,
		EnableOpenMetrics:   true,
	})
	if exporter != nil {
		failed := counter("spans_failed_total", "Spans that could not be delivered.")
		m.registry.MustRegister(failed)
		t.spans = newSpans(exporter, failed, o)
	}
	return t
}

// errorLog receives promhttp's errors of gathering and sending.
type errorLog struct{ logger hclog.Logger }

// Println implements promhttp.Logger. promhttp reports every metric family that it
// cannot send. If a client closes its connection early, the level is debug instead of
// warn.
func (l errorLog) Println(v ...any) {
	level := hclog.Warn
	for _, value := range v {
		var failed *net.OpError
		if err, ok := value.(error); ok && errors.As(err, &failed) {
			level = hclog.Debug
		}
	}
	l.logger.Log(level, "cannot gather or send all metrics", "error", v)
}

// Handler serves /metrics.
func (t *Telemetry) Handler() http.Handler { return t.handler }

// Gather returns what Handler serves. With an error, it returns the metrics that could be
// read.
func (t *Telemetry) Gather() ([]*dto.MetricFamily, error) { return t.metrics.registry.Gather() }

// Events returns the Broker of all events.
func (t *Telemetry) Events() *Broker { return t.events }

// Queue returns the counters for the API's option Queue.
func (t *Telemetry) Queue() *Queue { return t.metrics.queue }

// Observer returns the value for the field Observer of a configurator.Config.
func (t *Telemetry) Observer() configurator.Observer { return observer{t} }

// OnForced is for the field OnForced of a configurator.Config.
func (t *Telemetry) OnForced(id string, removed []configurator.Leftover) {
	t.metrics.forced.Inc()
	t.metrics.countLeftovers(removed, "removed")
	t.events.publish(client.TypeForced, client.Forced{ID: id, Removed: slices.Clone(removed)})
}

// Reloaded publishes that the program has read its own configuration, at the start or
// again. If err is not nil, the previous configuration stays active. restart are the settings that
// have changed, and need a restart.
func (t *Telemetry) Reloaded(err error, restart ...string) {
	t.metrics.reloaded(err, t.now())
	t.events.publish(client.TypeReload, client.Reload{Error: errorText(err, maxErrorText), Restart: restart})
}

// maxProblems bounds the number of problems in one event.
const maxProblems = 64

// Configured publishes that the network configuration changed: the primary network, its
// file, the reason if it cannot be used, and further problems that the administrator
// must repair.
func (t *Telemetry) Configured(primary, file string, notReady error, problems []error) {
	c := client.Configuration{Primary: primary, File: file, NotReady: errorText(notReady, maxErrorText)}
	for _, p := range problems[:min(len(problems), maxProblems)] {
		c.Problems = append(c.Problems, errorText(p, maxErrorText))
	}
	t.events.publish(client.TypeConfiguration, c)
}

// Shutdown ends all subscriptions after their last event and delivers the remaining
// spans, until the context ends. It may be called again. Operations that end later are
// still counted.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.events.close()
	if t.spans == nil {
		return nil
	}
	return t.spans.shutdown(ctx)
}
