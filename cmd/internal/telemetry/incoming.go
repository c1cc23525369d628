package telemetry

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
)

// Incoming returns ctx with the span of the caller that a request names in its header
// (traceparent of W3C Trace Context). The operations of the request become children of
// that span, and are not sampled if it is not. An invalid header is ignored.
func (t *Telemetry) Incoming(ctx context.Context, header http.Header) context.Context {
	if t.spans == nil || header.Get("Traceparent") == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
}
