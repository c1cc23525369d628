package api_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
)

// FuzzRequests sends arbitrary bytes to a server on a Unix socket. The server must answer
// in HTTP or disconnect, and then serve the next client. Accepted requests and their
// answers must match the OpenAPI description.
func FuzzRequests(f *testing.F) {
	for _, seed := range []struct{ method, path, body string }{
		{"PUT", "/v1/allocs/a", `{"netns":"/n","ports":[{"label":"http","value":80,"to":8080,"protocols":["tcp"]}],"networks":["net"]}`},
		{"PUT", "/v1/allocs/%2e%2e", `{"netns":"/n","args":{"K":"v"},"ips":["192.0.2.1"],"capabilities":{"x":[1]}}`},
		{"GET", "/v1/allocs/a?x=y#z", ""}, {"DELETE", "/v1/allocs/a", ""}, {"POST", "/v1/allocs/a/check", "{}"},
		{"POST", "/v1/sandboxes", `{"name":"../s"}`}, {"DELETE", "/v1/sandboxes/s", ""},
		{"POST", "/v1/gc", `{"live":["a"],"scope":"s","attachments":[{"containerID":"c","ifname":"eth0"}],"conflists":[{}]}`},
		{"POST", "/v1/repair", ""}, {"GET", "/v1/networks", ""}, {"GET", "/readyz", ""}, {"POST", "/cni", add}, {"POST", "/cni/plugins/bridge", "{}"},
		{"OPTIONS", "*", ""}, {"GET", "//", ""},
	} {
		f.Add([]byte(request(seed.method, seed.path, seed.body)))
	}
	f.Add([]byte("PUT /v1/allocs/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nRequest-Timeout: 1\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		socket, _ := apitest.Serve(t, api.Options{Limits: api.Limits{
			HeaderTimeout: 100 * time.Millisecond, BodyTimeout: 100 * time.Millisecond, IdleTimeout: 100 * time.Millisecond, Keepalive: time.Hour,
		}})
		c, err := net.Dial("unix", socket)
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
		_, _ = c.Write(data) // the server may disconnect early
		require.NoError(t, c.(*net.UnixConn).CloseWrite())
		answers := bufio.NewReader(c)
		for {
			if _, err := answers.Peek(1); err != nil {
				break
			}
			response, err := http.ReadResponse(answers, nil)
			require.NoError(t, err)
			body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
			if err != nil { // an answer to HEAD has no body
				break
			}
			if response.StatusCode >= 400 && strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") && len(body) > 0 {
				require.True(t, json.Valid(body) || strings.Contains(string(body), "HTTP/1.1"), "%s", body)
			}
		}
		require.Equal(t, 200, ask(t, socket, "GET", "/healthz", "").status)
	})
}
