package exporter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/exporter/certtest"
)

// run runs an Exporter on a loopback address until the test ends.
func run(t *testing.T, o Options, change ...func(*http.Server)) *Exporter {
	t.Helper()
	o.Address = "127.0.0.1:0"
	o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metric 1\n") })
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	e, err := Listen(o)
	require.NoError(t, err)
	for _, do := range change {
		do(e.server)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, e.Close())
	})
	return e
}

// get requests a path, and returns the status and the body.
func get(t *testing.T, c *http.Client, method, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, url, nil)
	require.NoError(t, err)
	response, err := c.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func client(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

// TestOnlyThreePaths requests everything else that the daemon's API has, too.
func TestOnlyThreePaths(t *testing.T) {
	base := "http://" + run(t, Options{}).Addr().String()
	c := client(nil)
	for path, want := range map[string]string{"/metrics": "metric 1\n", "/healthz": "ok\n", "/readyz": "ready\n"} {
		status, body := get(t, c, "GET", base+path)
		require.Equal(t, 200, status, path)
		require.Equal(t, want, body)
		status, body = get(t, c, "HEAD", base+path)
		require.Equal(t, 200, status, path)
		require.Empty(t, body)
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"} {
			status, _ = get(t, c, method, base+path)
			require.Equal(t, 405, status, "%s %s", method, path)
		}
	}
	for _, path := range []string{"/", "/v1/allocs", "/v1/allocs/a", "/v1/events", "/v1/gc", "/cni", "/cni/plugins/bridge", "/openapi.json", "/metrics/", "/debug/pprof/"} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			status, _ := get(t, c, method, base+path)
			require.Equal(t, 404, status, "%s %s", method, path)
		}
	}
}

// TestReady: the answer has no reason, and many requests cause few checks.
func TestReady(t *testing.T) {
	var calls, ready atomic.Int32
	e := run(t, Options{Ready: func(context.Context) error {
		calls.Add(1)
		if ready.Load() == 0 {
			return errors.New("secret/file is missing")
		}
		return nil
	}})
	url := "http://" + e.Addr().String() + "/readyz"
	e.mu.Lock() // the first check waits, so that all requests are there
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			status, body := get(t, client(nil), "GET", url)
			assert.Equal(t, 503, status)
			assert.NotContains(t, body, "secret")
		})
	}
	e.mu.Unlock()
	all.Wait()
	require.Less(t, calls.Load(), int32(20))
	ready.Store(1)
	e.mu.Lock()
	e.asked = time.Time{}
	e.mu.Unlock()
	status, _ := get(t, client(nil), "GET", url)
	require.Equal(t, 200, status)
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = Listen(Options{Address: l.Addr().String()})
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.ErrorContains(t, err, "listen for metrics: listen tcp "+l.Addr().String())
	require.ErrorContains(t, err, fmt.Sprintf("address already in use by exporter.test (process %d), which listens on %s", os.Getpid(), l.Addr()))
}

// TestConnectionsAreBounded: a client that opens many connections and asks nothing keeps no other out.
func TestConnectionsAreBounded(t *testing.T) {
	e := run(t, Options{}, func(s *http.Server) { s.ReadHeaderTimeout = time.Hour })
	open := func() net.Conn {
		c, err := net.Dial("tcp", e.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := open()
	for range maxConnections - 1 {
		open()
	}
	require.Contains(t, bytesOf(t, open(), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), "200 OK")
	_, err := first.Read(make([]byte, 1))
	require.Error(t, err, "closed for the last one")
}

func bytesOf(t *testing.T, c net.Conn, request string) string {
	t.Helper()
	_, err := io.WriteString(c, request)
	require.NoError(t, err)
	buffer := make([]byte, 1024)
	n, err := c.Read(buffer)
	require.NoError(t, err)
	return string(buffer[:n])
}

// config writes a web configuration beside the certificates of an authority.
func config(t *testing.T, a *certtest.Authority, lines ...string) string {
	file := a.Path("web.yml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	return file
}

// TestClientCertificates: only a client with a certificate of the authority is served. A
// new server certificate takes effect without a restart.
func TestClientCertificates(t *testing.T) {
	a := certtest.New(t)
	a.Issue("server")
	file := config(t, a, "tls_server_config:", "  cert_file: server.pem", "  key_file: server.key",
		"  client_auth_type: RequireAndVerifyClientCert", "  client_ca_file: ca.pem")
	require.NoError(t, Validate(file))
	url := "https://" + run(t, Options{WebConfig: file}).Addr().String() + "/metrics"
	roots := x509.NewCertPool()
	roots.AddCert(a.Cert)
	own := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{a.Issue("client")}}
	status, body := get(t, client(own), "GET", url)
	require.Equal(t, 200, status)
	require.Equal(t, "metric 1\n", body)

	_, err := client(&tls.Config{RootCAs: roots}).Get(url)
	require.ErrorContains(t, err, "certificate required")
	other := certtest.New(t)
	_, err = client(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{other.Issue("client")}}).Get(url)
	require.Error(t, err)
	_, err = client(&tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11, Certificates: own.Certificates}).Get(url)
	require.Error(t, err)
	response, err := client(nil).Get("http" + strings.TrimPrefix(url, "https"))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 400, response.StatusCode, "plain HTTP")

	serial := func() *big.Int {
		response, err := client(own).Get(url)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.TLS.PeerCertificates[0].SerialNumber
	}
	before := serial()
	a.Issue("server")
	require.NotEqual(t, before, serial())
}

func TestUsers(t *testing.T) {
	a := certtest.New(t)
	file := config(t, a, "basic_auth_users:", "  prometheus: $2a$04$Tsjnv7G52ZyfUbkh7ZMTzOzvobwvvqXbYRX.LddttmvsYd7BN2dLW") // "test"
	require.NoError(t, Validate(file))
	address := run(t, Options{WebConfig: file}).Addr().String()
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		status, _ := get(t, client(nil), "GET", "http://"+address+path)
		require.Equal(t, 401, status)
		status, _ = get(t, client(nil), "GET", "http://prometheus:wrong@"+address+path)
		require.Equal(t, 401, status)
	}
}

func TestValidate(t *testing.T) {
	require.NoError(t, Validate(""))
	a := certtest.New(t)
	a.Issue("server")
	for text, want := range map[string]string{
		"tls_server_config:\n  cert_file: none.pem\n  key_file: server.key":                                 "none.pem: no such file",
		"tls_server_config:\n  cert_file: ca.pem\n  key_file: server.key":                                   "private key does not match",
		"tls_server_config:\n  cert_file: server.pem":                                                       "missing one of key or key_file",
		"tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n  client_auth_type: Whatever": "invalid ClientAuth",
		"tls_server_confg: {}":          "field tls_server_confg not found",
		"basic_auth_users:\n  a: plain": "hashedSecret too short",
	} {
		file := config(t, a, text)
		require.ErrorContains(t, Validate(file), want)
		require.ErrorContains(t, Validate(file), file)
	}
	require.ErrorIs(t, Validate(a.Path("missing.yml")), os.ErrNotExist)
}
