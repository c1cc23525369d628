package main

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestMetricsListener serves metrics and probes over IPv6, and nothing of the API.
func TestMetricsListener(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `metrics { listen = "[::1]:9653" }`)
	p := w.start()
	get := func(path string) (int, string) {
		response, err := http.Get("http://[::1]:9653" + path)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	status, body := get("/metrics")
	require.Equal(t, 200, status)
	require.Contains(t, body, "\nallocnet_allocations 0\n")
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/v1/allocs": 404, "/openapi.json": 404} {
		status, _ := get(path)
		require.Equal(t, want, status, path)
	}
	w.configure(`networks = ["missing"]`, `metrics { listen = "127.0.0.1:9653" }`)
	require.Equal(t, "ready", p.reload())
	p.logged(`settings=["metrics.listen"]`)
	require.Eventually(t, func() bool { status, _ := get("/readyz"); return status == 503 }, time.Minute, time.Millisecond)
	p.stop()
	_, err := net.Dial("tcp", "[::1]:9653")
	require.Error(t, err)
}

// TestMetricsPortIsTaken: any user of the host may have the port. The daemon runs, says so, and serves
// metrics when the port is free.
func TestMetricsPortIsTaken(t *testing.T) {
	w := newWorkspace(t)
	l, err := net.Listen("tcp", "127.0.0.1:9653")
	require.NoError(t, err)
	w.configure(embedded, `metrics {`, `listen = "127.0.0.1:9653"`, `}`)
	p := w.start()
	want := "metrics.listen: listen for metrics: listen tcp 127.0.0.1:9653: bind: address already in use"
	status, err := w.client().HostStatus(t.Context())
	require.NoError(t, err)
	require.Len(t, status.Daemon.Problems, 1)
	require.Contains(t, status.Daemon.Problems[0], w.path("d.hcl")+":7: "+want)
	w.allocate("a1")
	w.release("a1")
	require.Contains(t, w.get("/metrics"), "\nallocnet_listener_failing{setting=\"metrics.listen\"} 1\n")
	require.Contains(t, w.get("/readyz"), "address already in use")
	require.True(t, *status.Ready, "it is not about setups")

	require.NoError(t, l.Close())
	p.logged("serving metrics")
	response, err := http.Get("http://127.0.0.1:9653/healthz")
	require.NoError(t, err)
	response.Body.Close()
	status, err = w.client().HostStatus(t.Context())
	require.NoError(t, err)
	require.Empty(t, status.Daemon.Problems)
	p.stop()
	_, err = net.Dial("tcp", "127.0.0.1:9653")
	require.Error(t, err)
}

// TestMetricsListenerFails: errors name the place of the setting. No socket is left.
func TestMetricsListenerFails(t *testing.T) {
	w := newWorkspace(t)
	w.write("web.yml", "tls_server_config: {cert_file: none.pem, key_file: none.key}")
	webConfig := `web_config = "` + w.path("web.yml") + `"`
	fails := func(code int, want string, args ...string) {
		t.Helper()
		out, err := w.command(args...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, code, exit.ExitCode(), string(out))
		require.Contains(t, string(out), want)
		require.NoFileExists(t, w.path("s"))
	}
	w.configure(`metrics { ` + webConfig + ` }`)
	invalid := `d.hcl:5: metrics.web_config: "` + w.path("web.yml") + `": failed to read cert_file (` + w.path("none.pem") + `): open ` + w.path("none.pem")
	fails(exitUsage, invalid)
	fails(exitUsage, invalid, "validate")
	w.configure(`metrics { listen = "localhost:9653" }`)
	fails(exitUsage, `d.hcl:5: metrics.listen: "localhost:9653" is not an address with a port`)

	w.configure()
	p := w.start()
	w.configure(`metrics { ` + webConfig + ` }`)
	require.Contains(t, p.reload(), "refused")
	require.Contains(t, strings.ReplaceAll(p.logged("not reloaded"), `\"`, `"`), invalid)
	p.stop()
}

// TestTrafficMetrics sends to an allocation, whose network counts it.
func TestTrafficMetrics(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `metrics { listen = "127.0.0.1:9653" }`)
	p := w.start()
	status := w.allocate("a1")
	c, err := net.Dial("udp", net.JoinHostPort(status.Address, "9"))
	require.NoError(t, err)
	defer c.Close()
	const sent = 5000 // at least: a write can fail with the answer to another one
	for range 10 {
		_, _ = c.Write(make([]byte, sent/5))
	}
	h := rtnl.OpenHost()
	defer h.Close()
	require.Eventually(t, func() bool {
		all, err := h.Statistics()
		require.NoError(t, err)
		for index, c := range all {
			if index > 1 && c.TxBytes >= sent {
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond)
	response, err := http.Get("http://127.0.0.1:9653/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	metrics := families["allocnet_network_receive_bytes_total"].GetMetric()
	require.Len(t, metrics, 1)
	require.Equal(t, "allocnet", metrics[0].GetLabel()[0].GetValue())
	require.GreaterOrEqual(t, metrics[0].GetCounter().GetValue(), float64(sent))
	w.release("a1")
	p.stop()
}
