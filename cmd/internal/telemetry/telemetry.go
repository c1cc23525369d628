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
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Options are the options of New. The zero value is valid. The functions
// are called when metrics are asked for, several at once.
type Options struct {
	// Version and Revision are those of the program.
	Version, Revision string
	// Networks returns the active networks and the skipped files, as
	// conflist.Dir.Networks does. nil: no metrics of leases and files.
	Networks func() ([]*conflist.Network, []*conflist.FileError)
	// Allocations counts those that have a record. nil: they are not counted.
	Allocations func() (int, error)
	// TraceEndpoint is where spans are sent by OTLP over HTTP:
	// http[s]://HOST[:PORT][/PATH], default path /v1/traces. "": there are none.
	// The rest (headers, certificates, sampling) is OpenTelemetry's environment.
	TraceEndpoint string
	// KeptEvents is how many events can be had again; default 1024.
	KeptEvents int
	// Logger logs spans that cannot be delivered and metrics that cannot
	// be had; default none.
	Logger hclog.Logger
}

// Telemetry is safe for concurrent use, and never waits for its readers.
type Telemetry struct {
	metrics *metrics
	handler http.Handler
	events  *Broker
	spans   *spans // nil: none
	now     func() time.Time
}

// New begins to count. The error is about the TraceEndpoint, which need not be
// there yet. Shutdown ends what New began.
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

// newTelemetry makes spans only with an exporter.
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
// cannot send. A client that closes its connection early is no warning for the host.
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

// Events is where all events come from.
func (t *Telemetry) Events() *Broker { return t.events }

// Queue is for the Options of the API: its field of that name.
func (t *Telemetry) Queue() *Queue { return t.metrics.queue }

// Observer is for the Config's field of that name.
func (t *Telemetry) Observer() configurator.Observer { return observer{t} }

// OnForced is for the Config's field of that name.
func (t *Telemetry) OnForced(id string, removed []configurator.Leftover) {
	t.metrics.forced.Inc()
	t.metrics.countLeftovers(removed, "removed")
	t.events.publish(client.TypeForced, client.Forced{ID: id, Removed: slices.Clone(removed)})
}

// Reloaded publishes that the program's own configuration was read, at the start or
// again. With an error, the former configuration stays active.
func (t *Telemetry) Reloaded(err error) {
	t.metrics.reloaded(err, t.now())
	t.events.publish(client.TypeReload, client.Reload{Error: errorText(err, maxErrorText)})
}

// maxProblems bounds the problems of one event.
const maxProblems = 64

// Configured publishes that the network configuration changed: which network
// is the primary one, the file that it is in, why it cannot be used, if so, and
// what else an operator has to repair.
func (t *Telemetry) Configured(primary, file string, notReady error, problems []error) {
	c := client.Configuration{Primary: primary, File: file, NotReady: errorText(notReady, maxErrorText)}
	for _, p := range problems[:min(len(problems), maxProblems)] {
		c.Problems = append(c.Problems, errorText(p, maxErrorText))
	}
	t.events.publish(client.TypeConfiguration, c)
}

// Shutdown ends all subscriptions after their last event and delivers the spans
// that are left, while the context allows. It may be called again. Whatever is
// observed later is counted all the same.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.events.close()
	if t.spans == nil {
		return nil
	}
	return t.spans.shutdown(ctx)
}
