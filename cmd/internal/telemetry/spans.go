package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/allocnet/allocnet/configurator"
)

// scope is the name of the instrumentation scope of the spans.
const scope = "github.com/allocnet/allocnet/cmd/internal/telemetry"

// tracesPath is the default path of OTLP over HTTP for spans.
const tracesPath = "/v1/traces"

// newExporter returns an exporter to an endpoint. It does not connect: the endpoint may
// come up later.
func newExporter(endpoint string) (sdktrace.SpanExporter, error) {
	u, err := url.Parse(endpoint)
	var malformed *url.Error
	if errors.As(err, &malformed) {
		return nil, fmt.Errorf("trace endpoint: %w", malformed.Err) // the URL may hold a password
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("trace endpoint %q: not of the form http[s]://HOST[:PORT][/PATH]", u.Redacted())
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = tracesPath
	}
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, fmt.Errorf("trace endpoint %q: %w", u.Redacted(), err)
	}
	return exporter, nil
}

// spans creates a span per operation, with one child per step, and delivers them in the
// background.
type spans struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

func newSpans(to sdktrace.SpanExporter, failed prometheus.Counter, o Options) *spans {
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&reporting{SpanExporter: to, failed: failed, logger: o.Logger}),
		sdktrace.WithResource(describe(o)))
	return &spans{provider: provider, tracer: provider.Tracer(scope, trace.WithInstrumentationVersion(o.Version))}
}

// describe returns the resource that sends the spans. OpenTelemetry's environment
// variables override and extend it.
func describe(o Options) *resource.Resource {
	own := resource.NewSchemaless(
		attribute.String("service.name", "allocnetd"), attribute.String("service.version", o.Version))
	// A malformed environment must not prevent spans. In a merge, the later resource
	// wins.
	env, _ := resource.New(context.Background(), resource.WithHost(), resource.WithFromEnv())
	all, err := resource.Merge(own, env)
	if err != nil {
		return own
	}
	return all
}

func (s *spans) begin(ctx context.Context, step configurator.Step, at time.Time) (context.Context, trace.Span) {
	name := step.Name
	if name == "" {
		name = step.Operation
	}
	return s.tracer.Start(ctx, name, trace.WithTimestamp(at))
}

// endSpan sets the attributes and the status of a span and ends it.
func endSpan(span trace.Span, s configurator.Step, outcome Outcome, text string, at time.Time) {
	attributes := make([]attribute.KeyValue, 0, 6)
	for _, a := range [...]struct{ key, value string }{
		{"operation", s.Operation}, {"step", s.Name}, {"allocation", s.ID}, {"engine", string(s.Engine)}, {"outcome", string(outcome)},
	} {
		if a.value != "" {
			attributes = append(attributes, attribute.String(namespace+"."+a.key, a.value))
		}
	}
	if len(s.Networks) > 0 {
		attributes = append(attributes, attribute.StringSlice(namespace+".networks", s.Networks))
	}
	span.SetAttributes(attributes...)
	if outcome != OK {
		span.SetStatus(codes.Error, text)
	}
	span.End(trace.WithTimestamp(at))
}

func (s *spans) shutdown(ctx context.Context) error {
	if err := s.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("deliver the last spans: %w", err)
	}
	return nil
}

// reporting wraps an exporter and logs spans that could not be delivered. The SDK would
// write them to stderr.
type reporting struct {
	sdktrace.SpanExporter
	failed prometheus.Counter
	logger hclog.Logger
}

// ExportSpans implements sdktrace.SpanExporter. The SDK calls it from one goroutine at
// a time.
func (r *reporting) ExportSpans(ctx context.Context, list []sdktrace.ReadOnlySpan) error {
	if err := r.SpanExporter.ExportSpans(ctx, list); err != nil {
		r.failed.Add(float64(len(list)))
		r.logger.Warn("spans could not be delivered", "spans", len(list), "error", err)
	}
	return nil
}
