package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/internal/state/record"
)

// get returns what the daemon serves at a path of its socket.
func (w *workspace) get(path string) string {
	w.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", w.path("s"))
	}}}
	answer, err := c.Get("http://allocnetd" + path)
	require.NoError(w, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(w, err)
	return string(body)
}

// TestReadinessIsTheSameEverywhere: while the file of the default network's subnet is missing, the overview, the
// metrics, doctor and the probe say so.
func TestReadinessIsTheSameEverywhere(t *testing.T) {
	w := newWorkspace(t)
	s := settings.Default()
	s.StateDir, s.ConfDir, s.SubnetsFrom = w.path("state"), w.path("conf"), w.path("subnet.env")
	w.write("subnet.env", "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
	h, err := newHost(settings.Source{}, s, hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.close()) })
	notReady := func() (findings []doctor.Finding) {
		report, err := h.examine(t.Context())
		require.NoError(t, err)
		return slices.DeleteFunc(report.Findings, func(f doctor.Finding) bool { return f.ID != "not-ready" })
	}
	status := h.status(t.Context())
	require.Empty(t, status.Unread)
	require.True(t, *status.Ready, status.NotReady)
	ready, err := h.readyNetworks()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"": 1, "allocnet": 1}, ready)
	require.Empty(t, notReady())

	require.NoError(t, os.Remove(s.SubnetsFrom))
	status = h.status(t.Context())
	require.False(t, *status.Ready)
	require.Len(t, status.NotReady, 1)
	require.Contains(t, status.NotReady[0], s.SubnetsFrom)
	require.Equal(t, status.NotReady[0], status.Networks[0].NotReady)
	ready, err = h.readyNetworks()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"": 1, "allocnet": 0}, ready)
	found := notReady()
	require.Len(t, found, 1)
	require.Equal(t, "allocnet", found[0].Object)
	require.Equal(t, status.NotReady[0], found[0].What)
	require.True(t, slices.ContainsFunc(h.ready(t.Context()), func(c readiness.Check) bool {
		return c.Network == "allocnet" && c.Err != nil && strings.Contains(c.Err.Error(), s.SubnetsFrom)
	}))
}

// TestHealthIsTheSameEverywhere: what the overview finds counts in the metric, and what the daemon has found before
// and was undone since does not count in either.
func TestHealthIsTheSameEverywhere(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `heal {`, `enabled = false`, `check_interval = "1h"`, `}`)
	p := w.start()
	w.allocate("a1")
	status := func() *client.HostStatus {
		t.Helper()
		s, err := w.client().HostStatus(background())
		require.NoError(t, err)
		return s
	}
	r, err := w.client().Get(background(), "a1")
	require.NoError(t, err)
	inside := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("nsenter", append([]string{"--net=" + r.Netns, "ip"}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	route := strings.Fields(inside("-4", "route", "show", "default"))
	require.NotEmpty(t, route)
	inside(append([]string{"route", "del"}, route...)...)
	s := status()
	require.Equal(t, 1, s.Allocations.Unhealthy)
	require.Equal(t, "a1", s.Drift[0].ID)
	require.Contains(t, w.get("/metrics"), "\nallocnet_unhealthy_allocations 1\n")
	inside(append([]string{"route", "add"}, route...)...)
	require.Equal(t, client.AllocationCounts{Total: 1, Healthy: 1}, status().Allocations)
	require.Contains(t, w.get("/metrics"), "\nallocnet_unhealthy_allocations 0\n")
	require.Contains(t, w.get("/metrics"), "\nallocnet_unchecked_allocations 0\n")

	store := record.Open(w.path("state"))
	half, err := store.Get("a1")
	require.NoError(t, err)
	half.Phase = record.Adding
	require.NoError(t, store.Put(half))
	require.Equal(t, client.AllocationCounts{Total: 1, Interrupted: 1}, status().Allocations)
	half.Phase = record.Ready
	require.NoError(t, store.Put(half))
	w.release("a1")
	p.stop()
}

// TestNoHealth: a daemon that checks nothing in the background does not say that no allocation is unhealthy.
func TestNoHealth(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `reconcile { mode = "report" }`)
	p := w.start()
	require.NotContains(t, w.get("/metrics"), "\nallocnet_unhealthy_allocations")
	require.Contains(t, w.get("/metrics"), "\nallocnet_heal_backoffs_total 0\n")
	p.stop()
}

// TestDoctorOfTheDaemonSaysWhatIsNotServed: so do the probe and the metrics.
func TestDoctorOfTheDaemonSaysWhatIsNotServed(t *testing.T) {
	w := newWorkspace(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	s := settings.Default()
	s.StateDir, s.ConfDir, s.UI = filepath.Join(w.dir, "state"), w.path("conf"), l.Addr().String()
	h, err := newHost(settings.Source{}, s, hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.close()) })
	require.NoError(t, h.listenForPage(w.path("s")))
	require.Equal(t, map[string]bool{"ui": true}, h.listeners())
	families, err := h.gather(t.Context())
	require.NoError(t, err)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "allocnet_listener_failing" })
	require.GreaterOrEqual(t, i, 0)
	require.InDelta(t, 1, families[i].GetMetric()[0].GetGauge().GetValue(), 0)
	report, err := h.examine(t.Context())
	require.NoError(t, err)
	i = slices.IndexFunc(report.Findings, func(f doctor.Finding) bool { return f.ID == "not-served" })
	require.GreaterOrEqual(t, i, 0, "%+v", report.Findings)
	require.Contains(t, report.Findings[i].What, "address already in use")
	require.True(t, slices.ContainsFunc(h.ready(t.Context()), func(c readiness.Check) bool { return c.Warning != nil && c.Err == nil }))

	require.NoError(t, l.Close())
	require.Eventually(t, h.optional[0].try, 10*time.Second, time.Millisecond)
	require.Equal(t, map[string]bool{"ui": false}, h.listeners())
}
