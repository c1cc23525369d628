package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/allocnet/allocnet/configurator"
)

// receiver is a server that receives spans.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	paths    []string
	resource []string
	spans    []*otlp.Span
}

func newReceiver(t testing.TB) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if err := r.receive(request); err != nil {
			t.Error(err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) receive(request *http.Request) error {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return err
	}
	var message collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &message); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths = append(r.paths, request.Method+" "+request.URL.Path)
	for _, of := range message.ResourceSpans {
		r.resource = attributes(of.Resource.Attributes)
		for _, scope := range of.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
	return nil
}

func attributes(list []*common.KeyValue) (texts []string) {
	for _, a := range list {
		value := a.Value.GetStringValue()
		for _, v := range a.Value.GetArrayValue().GetValues() {
			value += "[" + v.GetStringValue() + "]"
		}
		texts = append(texts, a.Key+"="+value)
	}
	return texts
}

// tree returns the spans as text, each below its parent.
func (r *receiver) tree(parent []byte, indent string) (lines []string) {
	for _, s := range r.spans {
		if string(s.ParentSpanId) != string(parent) {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s%s %s %s %q %s", indent, s.Name, time.Duration(s.EndTimeUnixNano-s.StartTimeUnixNano),
			s.Status.GetCode(), s.Status.GetMessage(), strings.Join(attributes(s.Attributes), " ")))
		lines = append(lines, r.tree(s.SpanId, indent+"  ")...)
	}
	return lines
}

// traced returns a rig that sends spans to an endpoint.
func traced(t *testing.T, endpoint string, o Options) *rig {
	t.Helper()
	exporter, err := newExporter(endpoint)
	require.NoError(t, err)
	c := newClock()
	return &rig{newTelemetry(o, exporter, c.now), c}
}

func TestSpans(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "site=here")
	t.Setenv("OTEL_SERVICE_NAME", "another")
	to := newReceiver(t)
	r := traced(t, to.URL, Options{Version: "1.2.3"})
	r.operate("setup", "a", "native", []string{"blue", "red"}, errors.New(`no {"key":"secret"}`),
		part{configurator.StepLock, time.Millisecond, nil}, part{configurator.StepAdd, 2 * time.Millisecond, context.DeadlineExceeded})
	r.operate("gc", "", "", nil, nil)
	require.NoError(t, r.Shutdown(t.Context()), "delivers what is left")
	require.Equal(t, []string{"POST /v1/traces"}, to.paths)
	for _, want := range []string{"service.name=another", "service.version=1.2.3", "site=here"} {
		require.Contains(t, to.resource, want)
	}
	require.Contains(t, strings.Join(to.resource, " "), "host.name=")
	const on = " allocnet.engine=native"
	require.Equal(t, []string{
		`setup 3ms STATUS_CODE_ERROR "no {...}" allocnet.operation=setup allocnet.allocation=a` + on + ` allocnet.outcome=error allocnet.networks=[blue][red]`,
		`  lock 1ms STATUS_CODE_UNSET "" allocnet.operation=setup allocnet.step=lock allocnet.allocation=a` + on + ` allocnet.outcome=ok allocnet.networks=[blue][red]`,
		`  add 2ms STATUS_CODE_ERROR "context deadline exceeded" allocnet.operation=setup allocnet.step=add allocnet.allocation=a` + on + ` allocnet.outcome=timeout allocnet.networks=[blue][red]`,
		`gc 0s STATUS_CODE_UNSET "" allocnet.operation=gc allocnet.outcome=ok`,
	}, to.tree(nil, ""))
	require.Equal(t, to.spans[0].TraceId, to.spans[2].TraceId)
	require.NotEqual(t, to.spans[0].TraceId, to.spans[3].TraceId)
	r.operate("gc", "", "", nil, nil)
	require.NoError(t, r.Shutdown(t.Context()), "again")
}

// TestNoSpans: without an endpoint no spans are sent, whatever the environment
// contains.
func TestNoSpans(t *testing.T) {
	to := newReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", to.URL)
	o, err := New(Options{})
	require.NoError(t, err)
	require.Nil(t, o.spans)
	r := &rig{o, newClock()}
	r.operate("setup", "a", "native", nil, nil, part{configurator.StepAdd, 0, nil})
	events := r.Events().Subscribe(t.Context(), 0)
	require.NoError(t, r.Shutdown(t.Context()))
	_, more := <-events
	require.False(t, more)
	require.Empty(t, to.paths)
	require.Empty(t, r.series(t, "spans"))
}

func TestTraceEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"http://x":                     "",
		"https://x:4318/otlp/":         "",
		"http://[::1]:4318":            "",
		"10.0.0.1:4318":                `trace endpoint: first path segment in URL cannot contain colon`,
		"localhost:4318":               `trace endpoint "localhost:4318": not of the form http[s]://HOST[:PORT][/PATH]`,
		"grpc://x":                     `trace endpoint "grpc://x": not of the form http[s]://HOST[:PORT][/PATH]`,
		"http://":                      `trace endpoint "http:": not of the form http[s]://HOST[:PORT][/PATH]`,
		"http://user:secret@x":         `trace endpoint "http://user:xxxxx@x": not of the form http[s]://HOST[:PORT][/PATH]`,
		"http://user:secret@x:notport": `trace endpoint: invalid port ":notport" after host`,
	} {
		o, err := New(Options{TraceEndpoint: endpoint})
		if want == "" {
			require.NoError(t, err, endpoint)
			require.NoError(t, o.Shutdown(t.Context()))
			continue
		}
		require.EqualError(t, err, want)
	}
}

func TestPathOfTheEndpoint(t *testing.T) {
	to := newReceiver(t)
	for _, path := range []string{"", "/", "/own/path"} {
		r := traced(t, to.URL+path, Options{})
		r.operate("gc", "", "", nil, nil)
		require.NoError(t, r.Shutdown(t.Context()))
	}
	require.Equal(t, []string{"POST /v1/traces", "POST /v1/traces", "POST /own/path"}, to.paths)
}

// TestSpansThatCannotBeDelivered: lost spans are counted and reported.
func TestSpansThatCannotBeDelivered(t *testing.T) {
	refuses := httptest.NewServer(http.NotFoundHandler())
	defer refuses.Close()
	var log strings.Builder
	r := traced(t, refuses.URL, Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
	r.operate("gc", "", "", nil, nil, part{configurator.StepDel, 0, nil})
	require.NoError(t, r.Shutdown(t.Context()))
	require.Equal(t, []string{"spans_failed_total 2"}, r.series(t, "spans"))
	require.Contains(t, log.String(), "spans could not be delivered: spans=2")
	require.Contains(t, log.String(), "404")
}

// TestReceiverThatHangs: operations continue, and Shutdown ends with its
// context.
func TestReceiverThatHangs(t *testing.T) {
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hangs.Close()
	defer close(release)
	r := traced(t, hangs.URL, Options{})
	for range 5000 { // more than the queue holds
		r.operate("gc", "", "", nil, nil)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Shutdown(ctx), context.DeadlineExceeded)
}

// TestIncoming: operations continue the trace of the caller, unless the caller does not
// sample it.
func TestIncoming(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for header, want := range map[string]string{
		"00-" + trace + "-" + parent + "-01": trace + " " + parent,
		"00-" + trace + "-" + parent + "-00": "",
		"":                                   "new",
		"00-" + trace:                        "new",
		"00-00000000000000000000000000000000-" + parent + "-01": "new",
	} {
		to := newReceiver(t)
		r := traced(t, to.URL, Options{})
		ctx := r.Incoming(t.Context(), http.Header{"Traceparent": {header}})
		whole := configurator.Step{Operation: "setup", ID: "a"}
		r.Observer().End(r.Observer().Begin(ctx, whole), whole, nil)
		require.NoError(t, r.Shutdown(t.Context()))
		if want == "" {
			require.Empty(t, to.spans, header)
			continue
		}
		require.Len(t, to.spans, 1, header)
		got := fmt.Sprintf("%x %x", to.spans[0].TraceId, to.spans[0].ParentSpanId)
		if want == "new" {
			require.NotContains(t, got, trace, header)
			require.Empty(t, to.spans[0].ParentSpanId, header)
			continue
		}
		require.Equal(t, want, got)
	}
}

func TestIncomingWithoutSpans(t *testing.T) {
	r := newRig(Options{})
	ctx := t.Context()
	require.Equal(t, ctx, r.Incoming(ctx, http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}))
}
