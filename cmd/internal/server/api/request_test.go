package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
)

const alloc = `{"netns":"/run/netns/a"}`

func TestAnswers(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{})
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string // is part of the answer
	}{
		{"GET", "/healthz", "", 200, `{"status":"ok"}`},
		{"GET", "/readyz", "", 200, `{"ready":true,"checks":[{"name":"status","network":"net","ready":true}]}`},
		{"GET", "/metrics", "", 200, "# nothing"},
		{"GET", "/openapi.json", "", 200, `"openapi": "3.0.3"`},
		{"GET", "/v1/history?limit=0", "", 400, `is not a number of at least 1`},
		{"GET", "/v1/networks", "", 200, `"skipped":[{"file":"/conf/broken.conflist","error":{"kind":"internal","message":"/conf/broken.conflist: is broken"`},
		{"GET", "/v1/status", "", 200, `"engine":"auto","networks":[]`},
		{"PATCH", "/v1/allocs/a", `{"labels":{"a":null},"policy":null}`, 400, `policy: is null: leave it out`},
		{"PATCH", "/v1/allocs/a", `{"bandwidth":null}`, 400, `bandwidth: is null: leave it out`},
		{"PATCH", "/v1/allocs/a", `{"policy":{"egress":{"rules":[{"peers":[{"cidr":"x"}]}]}}}`, 400, `policy.egress.rules[0].peers[0].cidr (line 1, column 11): \"x\" is not a network`},
		{"PUT", "/v1/allocs/a", `{"policy":{"egress":{"rules":[{"services":[{"protocol":"tcp","ports":"9-1"}]}]}},"netns":"/n"}`, 400, `egress.rules[0].services[0].ports`},
		{"GET", "/v1/denials", "", 200, `"flows":[{"id":"a","direction":"egress","address":"10.1.0.2","peer":"10.1.0.3","peerID":"b","protocol":"tcp","port":80,"rule":"default","packets":2,"bytes":120}]`},
		{"GET", "/v1/traffic", "", 200, `"allocations":[{"id":"a","interfaces":[],"connections":3}]`},
		{"GET", "/v1/allocs", "", 200, `{"allocations":[]}`},
		{"GET", "/v1/allocs/a", "", 404, `"kind":"not-found"`},
		{"PUT", "/v1/allocs/a", alloc, 200, `"interfaceName":"eth0"`},
		{"PUT", "/v1/allocs/a", `{"id":"a","netns":"/run/netns/a"}`, 200, `"interfaceName":"eth0"`},
		{"PUT", "/v1/allocs/a", `{"netns":"/run/netns/b"}`, 409, `"kind":"different"`},
		{"GET", "/v1/allocs/a", "", 200, `"phase":"ready"`},
		{"GET", "/v1/history?id=a&limit=1", "", 200, `"operation":"setup","id":"a"`},
		{"POST", "/v1/allocs/a/check", "", 204, ""},
		{"POST", "/v1/allocs/a/check", "{}", 204, ""},
		{"DELETE", "/v1/allocs/a", "", 204, ""},
		{"DELETE", "/v1/allocs/a", alloc, 204, ""},
		{"PUT", "/v1/allocs/a", `{"netns":"/n","networks":["nowhere"]}`, 422, `"kind":"unknown-network"`},
		{"PUT", "/v1/allocs/a", `{"netns":"/n","networks":["failing"]}`, 502, `"cniCode":7,"cniMessage":"no good"`},
		{"POST", "/v1/gc", `{"live":[]}`, 200, `{"removed":[],"kept":[]}`},
		{"POST", "/v1/repair", "", 200, `"healthy":[]`},
		{"POST", "/v1/repair", `{"scope":"s"}`, 200, `"healthy":[]`},
		{"POST", "/v1/recover", "", 200, `{"recovered":[]}`},
		{"POST", "/v1/recover", `{"scope":"s"}`, 200, `{"recovered":[]}`},
		{"POST", "/v1/sandboxes", `{"name":"s"}`, 200, `{"path":"/run/netns/s"}`},
		{"DELETE", "/v1/sandboxes/s", "", 204, ""},
	} {
		got := ask(t, socket, c.method, c.path, c.body)
		require.Equal(t, c.status, got.status, "%s %s: %s", c.method, c.path, got.body)
		require.Contains(t, got.body, c.want)
	}
}

func TestRefusals(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Limits: api.Limits{Body: 1000}})
	long := strings.Repeat("x", 1001)
	for _, c := range []struct {
		method, path, body string
		status             int
		kind, message      string
	}{
		{"PUT", "/v1/allocs/a", "", 400, "malformed", "the body (line 1, column 1): is empty"},
		{"PUT", "/v1/allocs/a", `{"netns":`, 400, "malformed", "is cut short"},
		{"PUT", "/v1/allocs/a", `{"netns":"/a","netns":"/b"}`, 400, "malformed", "netns (line 1, column 15): is there twice"},
		{"PUT", "/v1/allocs/a", `{"netns":"/a"}{}`, 400, "malformed", "after top-level value"},
		{"PUT", "/v1/allocs/a", `{"Netns":"/a"}`, 400, "malformed", "Netns (line 1, column 2): is not a known field"},
		{"PUT", "/v1/allocs/a", `{"ports":[{"value":1},{"value":"2"}]}`, 400, "malformed", "ports[1].value (line 1, column 32): must be a number, not a string"},
		{"PUT", "/v1/allocs/a", `{"capabilities":{"x":{"y":1,"y":2}}}`, 400, "malformed", "capabilities.x.y (line 1, column 29): is there twice"},
		{"PUT", "/v1/allocs/a", `{"id":"b"}`, 400, "malformed", `id: is "b", but the path has "a"`},
		{"PUT", "/v1/allocs/a", long, 413, "too-large", "at most 1000 bytes"},
		{"PUT", "/v1/allocs/a", strings.Repeat("x", 2<<20), 413, "too-large", "at most 1000 bytes"},
		{"PUT", "/v1/allocs/-a", alloc, 400, "invalid", "-a"},
		{"PUT", "/v1/allocs/a%2Fb", alloc, 400, "invalid", "a/b"},
		{"PUT", "/v1/allocs/%2E%2E", alloc, 400, "invalid", ".."},
		{"PUT", "/v1/allocs/" + strings.Repeat("a", 129), alloc, 400, "invalid", "aaa"},
		{"PUT", "/v1/allocs/a", `{"netns":"n"}`, 400, "invalid", "netns"},
		{"PUT", "/v1/allocs/a", `{"netns":"/n","ports":[{"value":70000}]}`, 400, "invalid", "70000"},
		{"DELETE", "/v1/allocs/a", "{", 400, "malformed", "is cut short"},
		{"POST", "/v1/gc", "{}", 400, "malformed", "live: is missing"},
		{"POST", "/v1/gc", `{"live":null}`, 400, "malformed", "live: is missing"},
		{"POST", "/v1/repair", `{"scopes":"s"}`, 400, "malformed", "scopes (line 1, column 2): is not a known field"},
		{"POST", "/v1/recover", `{"scope":1}`, 400, "malformed", "scope (line 1, column 10): must be a string"},
		{"GET", "/healthz", "{}", 400, "malformed", "the request must have no body"},
		{"GET", "/v1/allocs", "{}", 400, "malformed", "the request must have no body"},
		{"POST", "/v1/sandboxes", "{}", 400, "malformed", "name: is missing"},
		{"GET", "/", "", 404, "no-such-path", "/openapi.json"},
		{"GET", "/v2/allocs", "", 404, "no-such-path", "/v2/allocs"},
		{"GET", "/v1//allocs", "", 404, "no-such-path", "/v1//allocs"},
		{"GET", "/v1/../healthz", "", 404, "no-such-path", "/v1/../healthz"},
		{"PUT", "/v1/allocs", alloc, 405, "method-not-allowed", "takes GET"},
		{"POST", "/v1/allocs/a", alloc, 405, "method-not-allowed", "takes DELETE, GET, PATCH, PUT"},
		{"GET", "/v1/events?after=x", "", 400, "malformed", "not the ID of an event"},
	} {
		got := ask(t, socket, c.method, c.path, c.body)
		e := got.failure(t)
		require.Equal(t, c.status, got.status, "%s %s: %s", c.method, c.path, got.body)
		require.Equal(t, c.kind, e.Kind, c.path)
		require.Contains(t, e.Message, c.message)
	}
	require.Equal(t, "DELETE, GET, PATCH, PUT", ask(t, socket, "POST", "/v1/allocs/a", "").header.Get("Allow"))
	for _, wrong := range []string{"x", "0", "-1", "NaN"} {
		got := ask(t, socket, "PUT", "/v1/allocs/a", alloc, "Request-Timeout", wrong)
		require.Contains(t, got.failure(t).Message, "Request-Timeout", wrong)
	}
}

// TestHeadersOfRequests: what the API would ignore is refused, and the request has no effect.
func TestHeadersOfRequests(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{})
	require.Equal(t, 200, ask(t, socket, "PUT", "/v1/allocs/a", alloc).status)
	revision := ask(t, socket, "GET", "/v1/allocs/a", "").body
	for _, c := range []struct {
		method, path, body, header, value string
		status                            int
		want                              string
	}{
		{"PATCH", "/v1/allocs/a", "{}", "If-Match", `"1"`, 400, "the field revision"},
		{"PUT", "/v1/allocs/b", alloc, "If-None-Match", "*", 400, "mustBeNew"},
		{"DELETE", "/v1/allocs/a", "", "If-Match", `"1"`, 400, `"kind":"malformed"`},
		{"PATCH", "/v1/allocs/a", "{}", "If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT", 400, "If-Unmodified-Since"},
		{"PUT", "/v1/allocs/b", alloc, "Content-Encoding", "gzip", 415, `"kind":"media-type"`},
		{"PUT", "/v1/allocs/b", alloc, "Content-Type", "text/xml", 415, `\"text/xml\" is not supported`},
		{"PUT", "/v1/allocs/b", alloc, "Content-Type", "application/json;;", 415, `"kind":"media-type"`},
	} {
		got := ask(t, socket, c.method, c.path, c.body, c.header, c.value)
		require.Equal(t, c.status, got.status, "%s: %s", c.header, got.body)
		require.Contains(t, got.body, c.want)
	}
	require.Equal(t, 404, ask(t, socket, "GET", "/v1/allocs/b", "").status)
	require.Equal(t, revision, ask(t, socket, "GET", "/v1/allocs/a", "", "If-None-Match", `"1"`).body)
	for _, accepted := range [][]string{
		{}, {"Content-Type", "application/json"}, {"Content-Type", "Application/JSON; charset=utf-8"},
		{"Content-Type", "application/x-www-form-urlencoded"}, {"Content-Encoding", "identity"},
	} {
		got := ask(t, socket, "PUT", "/v1/allocs/a", alloc, accepted...)
		require.Equal(t, 200, got.status, "%q: %s", accepted, got.body)
	}
	require.Equal(t, 204, ask(t, socket, "DELETE", "/v1/allocs/a", "", "Content-Type", "text/plain").status, "there is no body")
}

// TestAnnouncedBody: a body whose announced length is too large is not awaited.
func TestAnnouncedBody(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Limits: api.Limits{BodyTimeout: time.Hour}})
	got := readAll(t, dial(t, socket, "PUT /v1/allocs/a HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n{"))
	require.Contains(t, got, "HTTP/1.1 413 ")
	require.Contains(t, got, `"kind":"too-large"`)
}

// TestChunkedBody sends a body without its length in the header.
func TestChunkedBody(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Limits: api.Limits{Body: 100}})
	head := "PUT /v1/allocs/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	got := readAll(t, dial(t, socket, strings.Replace(head, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)+"18\r\n"+alloc+"\r\n0\r\n\r\n"))
	require.Contains(t, got, "HTTP/1.1 200 OK")
	got = readAll(t, dial(t, socket, head+"ff\r\n"+strings.Repeat(" ", 255)+"\r\n0\r\n\r\n"))
	require.Contains(t, got, "HTTP/1.1 413 ")
	got = readAll(t, dial(t, socket, head+"nonsense\r\n"))
	require.Contains(t, got, "HTTP/1.1 400 ")
}

// TestNoHTTP sends requests that reach no handler.
func TestNoHTTP(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{})
	require.Contains(t, readAll(t, dial(t, socket, "nonsense\r\n\r\n")), "HTTP/1.1 400 ")
	require.Contains(t, readAll(t, dial(t, socket, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 40<<10)+"\r\n\r\n")), "HTTP/1.1 431 ")
	for _, line := range []string{"OPTIONS *", "CONNECT x:1"} {
		require.Contains(t, readAll(t, dial(t, socket, line+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), `"kind":"no-such-path"`, line)
	}
}
