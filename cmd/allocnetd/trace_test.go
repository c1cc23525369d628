package main

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TestTraceOfTheCaller: the spans of operations through the API and the plugin's request
// belong to the trace that the request names.
func TestTraceOfTheCaller(t *testing.T) {
	w := newWorkspace(t)
	names := make(chan string, 1000)
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var message collector.ExportTraceServiceRequest
		_ = proto.Unmarshal(body, &message)
		for _, of := range message.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				for _, s := range scope.Spans {
					names <- s.Name + " " + hex.EncodeToString(s.TraceId) + " " + hex.EncodeToString(s.ParentSpanId)
				}
			}
		}
	}))
	defer to.Close()
	w.configure(embedded, `telemetry { otlp_endpoint = "`+to.URL+`" }`)
	p := w.start()
	const api, cni, parent = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	send := func(method, path, body, trace string) {
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", w.path("s"))
		}}
		request, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Traceparent", "00-"+trace+"-"+parent+"-01")
		response, err := (&http.Client{Transport: transport}).Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Less(t, response.StatusCode, 300, string(text))
	}
	send("PUT", "/v1/allocs/a1", `{"ownNetns": true}`, api)
	send("DELETE", "/v1/allocs/a1", `{"ownNetns": true, "wait": true}`, api)
	send("POST", "/cni", `{"env": {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}, "config": {"cniVersion": "1.1.0", "name": "x", "type": "allocnet"}}`, cni)
	p.stop()
	close(names)
	var all []string
	for name := range names {
		all = append(all, name)
	}
	require.Contains(t, all, "setup "+api+" "+parent)
	require.Contains(t, all, "teardown "+api+" "+parent)
	require.Contains(t, strings.Join(all, "\n"), " "+cni+" "+parent)
}
