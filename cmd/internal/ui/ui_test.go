package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/portmap"
)

// apiPaths are all paths that need the token.
var apiPaths = []string{"/api/state", "/api/status", "/api/doctor", "/api/leases", "/api/latencies", "/api/history", "/api/events"}

// defaults are Options with an empty service.
func defaults() Options {
	memory := apitest.Defaults()
	return Options{
		Address: "127.0.0.1:0", Service: memory.Service,
		Networks: func() ([]*conflist.Network, []*conflist.FileError) { return nil, nil },
		Status:   func(ctx context.Context) (*client.HostStatus, error) { return memory.Status(ctx), nil },
		Doctor: func(context.Context) (*doctor.Report, error) {
			return &doctor.Report{Checks: []doctor.Check{}, Findings: []doctor.Finding{}}, nil
		},
		Events: func(context.Context, uint64) <-chan wire.Event {
			events := make(chan wire.Event)
			close(events)
			return events
		},
	}
}

// serve runs a Server until the test ends.
func serve(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Listen(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, s.Close())
	})
	return s
}

// ask sends a request with the token; change may change it.
func (s *Server) ask(t *testing.T, path string, change ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.listener.Addr().String()+path, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.token)
	for _, do := range change {
		do(r)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := c.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(body)
}

// fetch returns the decoded answer of a path.
func fetch[T any](t *testing.T, s *Server, path string) (value T) {
	t.Helper()
	answer, body := s.ask(t, path)
	require.Equal(t, http.StatusOK, answer.StatusCode, body)
	require.Equal(t, "application/json", answer.Header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal([]byte(body), &value), body)
	return value
}

// TestToken: without the token, nothing of the host is served, wherever else a client puts
// it. Two servers have different tokens.
func TestToken(t *testing.T) {
	s, other := serve(t, defaults()), serve(t, defaults())
	require.Regexp(t, `^http://127\.0\.0\.1:[0-9]+/#token=[A-Z2-7]{26,}$`, s.URL())
	require.NotEqual(t, s.token, other.token)
	for _, path := range apiPaths {
		answer, _ := s.ask(t, path)
		require.Equal(t, http.StatusOK, answer.StatusCode, path)
		for name, change := range map[string]func(*http.Request){
			"none":  func(r *http.Request) { r.Header.Del("Authorization") },
			"empty": func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") },
			"other": func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+other.token) },
			"part":  func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+s.token[1:]) },
			"query, cookie": func(r *http.Request) {
				r.Header.Del("Authorization")
				r.URL.RawQuery = "token=" + s.token
				r.AddCookie(&http.Cookie{Name: "token", Value: s.token})
			},
		} {
			answer, body := s.ask(t, path, change)
			require.Equal(t, http.StatusUnauthorized, answer.StatusCode, "%s %s", path, name)
			require.Contains(t, body, "open the URL with the token")
		}
	}
	answer, _ := s.ask(t, "/api/none", func(r *http.Request) { r.Header.Del("Authorization") })
	require.Equal(t, http.StatusUnauthorized, answer.StatusCode)
	answer, _ = s.ask(t, "/", func(r *http.Request) { r.Header.Del("Authorization") })
	require.Equal(t, http.StatusOK, answer.StatusCode, "the page itself contains nothing of the host")
}

// TestHost: a name that an attacker makes resolve to the address is refused, for the files of
// the page as well.
func TestHost(t *testing.T) {
	s := serve(t, defaults())
	address := s.listener.Addr().String()
	_, port, _ := strings.Cut(address, ":")
	for _, path := range []string{"/", "/page.js", "/api/state"} {
		for _, host := range []string{address, "localhost:" + port} {
			answer, _ := s.ask(t, path, func(r *http.Request) { r.Host = host })
			require.Equal(t, http.StatusOK, answer.StatusCode, host)
		}
		for _, host := range []string{"evil.example:" + port, "evil.example", "127.0.0.1", "localhost", "127.0.0.1:1", "127.0.0.1." + ":" + port, address + ".evil.example", "[::1]:" + port} {
			answer, body := s.ask(t, path, func(r *http.Request) { r.Host = host })
			require.Equal(t, http.StatusMisdirectedRequest, answer.StatusCode, host)
			require.Contains(t, body, "http://"+address+"/ only")
		}
	}
}

func TestOnlyReads(t *testing.T) {
	s := serve(t, defaults())
	for _, path := range append([]string{"/", "/page.js", "/none"}, apiPaths...) {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT-X"} {
			answer, _ := s.ask(t, path, func(r *http.Request) { r.Method = method })
			require.Equal(t, http.StatusMethodNotAllowed, answer.StatusCode, "%s %s", method, path)
			require.Equal(t, "GET, HEAD", answer.Header.Get("Allow"))
		}
	}
	answer, body := s.ask(t, "/api/state", func(r *http.Request) { r.Method = "HEAD" })
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Empty(t, body)
}

// TestHeaders: also responses with errors have them.
func TestHeaders(t *testing.T) {
	s := serve(t, defaults())
	for _, path := range append([]string{"/", "/page.css", "/none"}, apiPaths...) {
		for _, change := range []func(*http.Request){func(*http.Request) {}, func(r *http.Request) { r.Host = "x" }, func(r *http.Request) { r.Method = "POST" }, func(r *http.Request) { r.Header.Del("Authorization") }} {
			answer, _ := s.ask(t, path, change)
			for name, value := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"} {
				require.Equal(t, value, answer.Header.Get(name), path)
			}
			if path != "/none" { // package http removes it from its own errors
				require.Equal(t, "no-store", answer.Header.Get("Cache-Control"), path)
			}
			policy := answer.Header.Get("Content-Security-Policy")
			require.Regexp(t, `^default-src 'none'; .*frame-ancestors 'none'; require-trusted-types-for 'script'`, policy)
			require.NotContains(t, policy, "unsafe")
			require.Empty(t, answer.Header.Get("Access-Control-Allow-Origin"))
		}
	}
}

// TestFiles: the page loads nothing from elsewhere, has no script or style in its markup, and
// makes no markup of texts.
func TestFiles(t *testing.T) {
	s := serve(t, defaults())
	types := map[string]string{"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
	address := regexp.MustCompile(`(?i)https?://[^"'\s]*|url\(`)
	require.NoError(t, fs.WalkDir(files, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, "page")
		if name == "/index.html" {
			name = "/"
		}
		answer, body := s.ask(t, name)
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Contains(t, answer.Header.Get("Content-Type"), types[path[strings.LastIndex(path, ".")+1:]], path)
		for _, found := range address.FindAllString(body, -1) {
			require.Equal(t, "http://www.w3.org/2000/svg", found, path)
		}
		require.NotRegexp(t, `(?i)innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|\sstyle=|<style|\son[a-z]+="|srcdoc`, body, path)
		return nil
	}))
}

func TestOnlyLoopback(t *testing.T) {
	for _, address := range []string{"", ":0", "0.0.0.0:0", "localhost:0", "192.0.2.1:80"} {
		o := defaults()
		o.Address = address
		_, err := Listen(o)
		require.ErrorContains(t, err, "is not a loopback address with a port", address)
	}
}

// TestState has texts that would be markup in a page, and configurations, which are no part
// of the answer.
func TestState(t *testing.T) {
	o := defaults()
	service := o.Service()
	markup := `<img src=x onerror=alert(1)>`
	_, err := service.Setup(t.Context(), allocnet.Allocation{
		ID: "web", Netns: "/run/netns/web", Ports: []portmap.Port{{Label: markup, Value: 80}},
		Args: map[string]string{"NAME": markup},
	})
	require.NoError(t, err)
	o.Networks = func() ([]*conflist.Network, []*conflist.FileError) { return nil, nil }
	s := serve(t, o)
	answer, body := s.ask(t, "/api/state")
	require.Equal(t, http.StatusOK, answer.StatusCode, body)
	require.NotContains(t, body, "<")
	require.NotContains(t, body, `"config"`)
	var st state
	require.NoError(t, json.Unmarshal([]byte(body), &st))
	require.Len(t, st.Allocations, 1)
	require.Equal(t, "web", st.Allocations[0].ID)
	require.Equal(t, markup, st.Allocations[0].Ports[0].Label)
	require.True(t, st.Live)
	require.Len(t, st.Skipped, 1)
	require.Contains(t, st.Skipped[0].File, apitest.Broken)
	require.NotContains(t, body, ":null")
}

// TestMissingNetwork: an allocation of a network that no file has any more is not lost.
func TestMissingNetwork(t *testing.T) {
	st := &state{Allocations: []allocation{{ID: "a", Networks: []string{"gone", apitest.Net}}}}
	s := serve(t, defaults())
	s.addNetworks(requestFor(t), st)
	require.Equal(t, network{Name: "gone", Missing: true}, st.Networks[len(st.Networks)-1])
	for _, n := range st.Networks[:len(st.Networks)-1] {
		require.False(t, n.Missing, n.Name)
	}
}

func requestFor(t *testing.T) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	require.NoError(t, err)
	return r
}

// TestFailures: the reason reaches the page.
func TestFailures(t *testing.T) {
	o := defaults()
	o.Status = func(context.Context) (*client.HostStatus, error) { return nil, errors.New("no daemon") }
	s := serve(t, o)
	answer, body := s.ask(t, "/api/status")
	require.Equal(t, http.StatusBadGateway, answer.StatusCode)
	require.JSONEq(t, `{"error":"no daemon"}`, body)
	for _, path := range []string{"/api/history?limit=0", "/api/history?limit=101", "/api/history?limit=x", "/api/events?after=-1"} {
		answer, _ = s.ask(t, path)
		require.Equal(t, http.StatusBadRequest, answer.StatusCode, path)
	}
}

func TestHistory(t *testing.T) {
	s := serve(t, defaults())
	_, err := s.options.Service().Setup(t.Context(), allocnet.Allocation{ID: "web", Netns: "/run/netns/web"})
	require.NoError(t, err)
	require.NotNil(t, fetch[[]allocnet.HistoryEntry](t, s, "/api/history?id=web"))
}

func TestLatencies(t *testing.T) {
	registry := prometheus.NewRegistry()
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "allocnet_operation_duration_seconds", Buckets: []float64{0.1, 1}}, []string{"operation", "engine"})
	registry.MustRegister(durations)
	for _, seconds := range []float64{0.05, 0.5, 0.6, 7} {
		durations.WithLabelValues("setup", "native").Observe(seconds)
	}
	durations.WithLabelValues("check", "exec").Observe(0.05)
	o := defaults()
	o.Metrics = func(context.Context) ([]*dto.MetricFamily, error) { return registry.Gather() }
	s := serve(t, o)
	_, body := s.ask(t, "/api/latencies")
	require.JSONEq(t, `{"operations": [
		{"operation": "setup", "part": "native", "count": 4, "sum": 8.15, "buckets": [{"limit": 0.1, "count": 1}, {"limit": 1, "count": 2}, {"limit": null, "count": 1}]},
		{"operation": "check", "part": "exec", "count": 1, "sum": 0.05, "buckets": [{"limit": 0.1, "count": 1}, {"limit": 1, "count": 0}, {"limit": null, "count": 0}]}
	], "steps": []}`, body)
	_, body = serve(t, defaults()).ask(t, "/api/latencies")
	require.JSONEq(t, `{"operations": [], "steps": []}`, body, "without a daemon")
}

// TestEvents: events arrive one by one, also after the time for a request, and the stream
// ends with the server.
func TestEvents(t *testing.T) {
	o := defaults()
	events, asked := make(chan wire.Event), make(chan uint64, 1)
	o.Events = func(_ context.Context, last uint64) <-chan wire.Event {
		asked <- last
		return events
	}
	s, err := Listen(o)
	require.NoError(t, err)
	s.server.ReadHeaderTimeout, s.server.ReadTimeout = 200*time.Millisecond, 200*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r := requestFor(t)
	r.URL.Scheme, r.URL.Host, r.URL.Path, r.URL.RawQuery = "http", s.listener.Addr().String(), "/api/events", "after=7"
	r.Header.Set("Authorization", "Bearer "+s.token)
	answer, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, uint64(7), <-asked)
	lines := bufio.NewScanner(answer.Body)
	require.True(t, lines.Scan())
	require.Regexp(t, `^{"time":".*","type":"opened","data":null}$`, lines.Text())
	<-time.After(2 * s.server.ReadTimeout)
	for id := range uint64(3) {
		events <- wire.Event{ID: id + 8, Time: time.Unix(0, 0).UTC(), Type: "reload", Data: client.Reload{Error: "<b>"}}
		require.True(t, lines.Scan())
		require.JSONEq(t, `{"id": `+string(rune('8'+id%2))+`, "time": "1970-01-01T00:00:00Z", "type": "reload", "data": {"error": "<b>"}}`, strings.Replace(lines.Text(), `"id":10`, `"id":8`, 1))
	}
	cancel()
	require.NoError(t, <-ended)
	require.False(t, lines.Scan())

	o.Events = nil
	none, body := serve(t, o).ask(t, "/api/events")
	require.Equal(t, http.StatusNotFound, none.StatusCode, body)
}

// TestClientThatReadsNothing: without the token as well, it does not keep its connection.
func TestClientThatReadsNothing(t *testing.T) {
	s, err := Listen(defaults())
	require.NoError(t, err)
	require.Equal(t, answerTimeout, s.server.WriteTimeout)
	s.server.WriteTimeout = 100 * time.Millisecond
	closed := make(chan struct{})
	s.server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(closed)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	address := s.listener.Addr().String()
	client, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer client.Close()
	go func() {
		for err := error(nil); err == nil; {
			_, err = io.WriteString(client, "GET /page.css HTTP/1.1\r\nHost: "+address+"\r\n\r\n")
		}
	}()
	<-closed
	cancel()
	require.NoError(t, <-ended)
}

// TestConnectionsAreBounded: a client that opens many connections and asks nothing keeps no other out.
func TestConnectionsAreBounded(t *testing.T) {
	s, err := Listen(defaults())
	require.NoError(t, err)
	s.server.ReadHeaderTimeout = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	address := s.listener.Addr().String()
	for range maxConnections {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
	}
	answer, err := http.Get("http://" + address + "/")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
	cancel()
	require.NoError(t, <-ended)
}

// TestSharedCall: two requests at the same time cause one examination, which does not end
// with the first of them.
func TestSharedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		calls, release := 0, make(chan struct{})
		examine := s.alone("doctor", func(ctx context.Context) (any, error) {
			calls++
			select {
			case <-release:
				return calls, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan any, 1)
		go func() {
			_, err := examine(requestFor(t).WithContext(ctx))
			first <- err
		}()
		synctest.Wait()
		go func() {
			value, _ := examine(requestFor(t))
			second <- value
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		close(release)
		require.Equal(t, 1, <-second)
	})
}
