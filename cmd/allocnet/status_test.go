package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestStatus(t *testing.T) {
	w := newWorkspace(t)
	s := w.sandbox("gone")
	for _, id := range []string{"gone", "web"} {
		if id == "web" {
			w.sandbox(id)
		}
		w.run("setup", id).ok(t)
	}
	require.NoError(t, s.Destroy())
	got := w.run("status", "--json")
	require.Equal(t, exitNo, got.code, "an allocation has lost its network namespace")
	status := decode[client.HostStatus](t, got.out)
	require.Nil(t, status.Daemon)
	require.Equal(t, client.AllocationCounts{Total: 2, Healthy: 1, NetnsGone: 1}, status.Allocations)
	require.Equal(t, []string{"front", "back", "allocnet"}, []string{status.Networks[0].Name, status.Networks[1].Name, status.Networks[2].Name})
	require.Equal(t, client.AddressCounts{Used: 0, Free: 65533}, status.Networks[2].Addresses["ipv4"])
	require.NotEmpty(t, status.Versions.Kernel)
	require.Regexp(t, `^v?[0-9]`, status.Versions.NFT)
	require.Regexp(t, `^v?[0-9]`, status.Versions.IPTables)
	require.NotContains(t, got.out, "null")

	w.run("teardown", "gone").ok(t)
	require.NoError(t, os.Rename(w.path("conf"), w.path("away")))
	require.NotContains(t, w.run("status").ok(t), "SKIPPED", "a host may have the embedded network only")
	require.NoError(t, os.Rename(w.path("away"), w.path("conf")))
	require.Regexp(t, `(?m)^Daemon +not asked, because of the flags; .*\n(.*\n)*Allocations +1 healthy\nDrift +none\nDoctor +nothing found by the quick checks\n(.*\n)*front +yes `, w.run("status").ok(t))
}

// TestStatusNamesDrift: CHECK of one allocation fails, that of another one cannot be
// completed.
func TestStatusNamesDrift(t *testing.T) {
	w := newWorkspace(t)
	w.ailing("a", fakeplugin.Behaviour{Code: 100, Msg: "the route is missing"})
	w.ailing("b", fakeplugin.Behaviour{Code: 11, Msg: "not now"})
	require.NoError(t, os.WriteFile(w.path("conf/30-broken.conflist"), []byte("{"), 0o600))
	got := w.run("status", "--json")
	require.Equal(t, exitNo, got.code)
	status := decode[client.HostStatus](t, got.out)
	require.Equal(t, client.AllocationCounts{Total: 2, Unhealthy: 1, Unchecked: 1}, status.Allocations)
	require.Equal(t, [][]string{{"a"}, {"b"}}, [][]string{status.Unhealthy, status.Unchecked})
	require.Len(t, status.Drift, 1)
	require.Equal(t, "a", status.Drift[0].ID)
	require.Contains(t, status.Drift[0].Error, "the route is missing")
	require.Contains(t, strings.Join(status.Problems, "\n"), "check b: ")
	require.Contains(t, strings.Join(status.Skipped, "\n"), "30-broken.conflist")

	text := w.run("status").out
	require.Regexp(t, `(?m)^Allocations +1 not checked, 1 unhealthy\nDrift +1 allocation$`, text)
	require.Contains(t, text, "DRIFT (`allocnet repair` restores")
	require.Regexp(t, `(?m)^  a: .*the route is missing`, text)
	require.Contains(t, text, "SKIPPED FILES")
	require.Contains(t, text, "NOT READ")
}

// TestStatusHasTheDoctor: what doctor calls an error is one for status, a warning is only shown.
func TestStatusHasTheDoctor(t *testing.T) {
	privhost.Require(t, "nft", "iptables", "ip")
	w := newWorkspace(t)
	require.Regexp(t, `(?m)^Doctor +nothing found by the quick checks$`, w.run("status").ok(t))
	ip := func(args ...string) {
		t.Helper()
		out, err := exec.Command("ip", args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	ip("link", "add", "other", "type", "bridge")
	t.Cleanup(func() { ip("link", "del", "other") })
	require.NoError(t, os.MkdirAll(w.path("state"), 0o700))
	require.NoError(t, os.WriteFile(w.path("state/subnets"), []byte(`["10.202.0.0/16"]`), 0o600)) // chosen when they were free
	ip("addr", "add", "10.202.3.1/24", "dev", "other")
	got := w.run("status")
	require.Equal(t, exitNo, got.code)
	require.Regexp(t, `(?m)^Doctor +1 error$`, got.out)
	require.Regexp(t, "(?m)^DOCTOR \\(`allocnet doctor` .*\\)\n  error subnet-overlap: subnet 10.202.0.0/16 .*10.202.3.1/24", got.out)
	status := decode[client.HostStatus](t, w.run("status", "--json").out)
	require.Equal(t, 1, status.Doctor.Errors)
	require.Equal(t, "subnet-overlap error", status.Doctor.Findings[0].ID+" "+status.Doctor.Findings[0].Severity)

	ip("addr", "del", "10.202.3.1/24", "dev", "other")
	l, err := net.Listen("tcp4", "0.0.0.0:7301")
	require.NoError(t, err)
	defer l.Close()
	w.sandbox("web")
	w.run("setup", "web", "-p", "7301:80/tcp").ok(t)
	got = w.run("status")
	require.Equal(t, exitOK, got.code, got.out)
	require.Regexp(t, `(?m)^Doctor +1 warning$`, got.out)
}

// TestStatusOfTheDaemon: the command prints what the daemon reports, and fails if the daemon
// that was named does not run.
func TestStatusOfTheDaemon(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	status := decode[client.HostStatus](t, ask("status", "--json").ok(t))
	require.Equal(t, 1, status.Daemon.PID)
	require.Regexp(t, `(?m)^Daemon +running for 0s, process 1, version v1$`, ask("status").ok(t))
	require.Equal(t, "no-daemon", runWith("", "status", "--socket", w.path("nobody"), "--json").failure(t, exitFailure).Kind)
}

// TestStatusShowsTheUnknown: what could not be read is neither none nor healthy.
func TestStatusShowsTheUnknown(t *testing.T) {
	var out strings.Builder
	a := newApp(nil, &out, nil)
	ready := false
	daemon := &client.DaemonStatus{Version: "v2", PID: 7, Started: time.Now()}
	s := &client.HostStatus{
		Daemon: daemon, Engine: configurator.EngineAuto, Ready: &ready, NotReady: []string{"network \"web\": the file of its subnet is missing"},
		Unread: []string{"networks", "allocations", "doctor"}, Problems: []string{"doctor: not read within 10s"},
	}
	a.printHostStatus(s)
	require.Regexp(t, `^Daemon .*\nEngine .*\nReady +no\nAllocations +not known\nDrift +not known\nDoctor +not known\nKernel `, out.String())
	require.NotContains(t, out.String(), "NETWORK ")
	require.Contains(t, out.String(), "NOT READY (`allocnet ready` looks again)\n  network \"web\": the file of its subnet is missing\n")
	require.True(t, isWrong(s))

	out.Reset()
	a.printHostStatus(&client.HostStatus{Daemon: daemon, Allocations: client.AllocationCounts{Total: 6, Healthy: 1, Unchecked: 3, Interrupted: 2, Unreadable: 1}})
	require.Regexp(t, `(?m)^Allocations +1 healthy, 3 not checked, 2 interrupted, 1 with a record that cannot be read\nDrift +none found, but 3 allocations not checked$`, out.String())
	for _, one := range []client.HostStatus{{Ready: &ready}, {Unread: []string{"ready"}}, {Allocations: client.AllocationCounts{Interrupted: 1}}} {
		require.True(t, isWrong(&one))
	}
	require.False(t, isWrong(&client.HostStatus{}))
}

// TestStatusWithoutCheck: an allocation in a network without CHECK does not count as healthy.
func TestStatusWithoutCheck(t *testing.T) {
	w := newWorkspace(t)
	file := w.path("conf/10-front.conflist")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), `"name":"front"`, `"name":"front","disableCheck":true`, 1)), 0o600))
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	require.Regexp(t, `(?m)^Allocations +1 without CHECK$`, w.run("status").ok(t))
	status := decode[client.HostStatus](t, w.run("status", "--json").ok(t))
	require.Equal(t, client.AllocationCounts{Total: 1, NoCheck: 1}, status.Allocations)
	require.Equal(t, []string{"web"}, status.NoCheck)
	require.Equal(t, "ok: web is healthy\n\nnot checked, because they have no CHECK: front\n", w.run("check", "web").ok(t))
	require.JSONEq(t, `{"id": "web", "healthy": true, "noCheck": ["front"]}`, w.run("check", "web", "--json").ok(t))
}

// TestStatusNotReady: readiness of the default network is in the overview and in doctor. An allocation on which no
// operation works is not being set up.
func TestStatusNotReady(t *testing.T) {
	w := newWorkspace(t)
	require.Regexp(t, `(?m)^Ready +yes$`, w.run("status").ok(t))
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	store := record.Open(w.path("state"))
	half, err := store.Get("web")
	require.NoError(t, err)
	half.Phase = record.Adding
	require.NoError(t, store.Put(half))
	got := w.run("status")
	require.Equal(t, exitNo, got.code)
	require.Regexp(t, `(?m)^Allocations +1 interrupted$`, got.out)
	w.run("recover").ok(t)

	require.NoError(t, os.Rename(w.path("conf"), w.path("away")))
	file := w.path("subnet.env")
	require.NoError(t, os.WriteFile(file, []byte("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"), 0o600))
	require.Regexp(t, `(?m)^Ready +yes$`, w.run("status", "--subnets-from", file).ok(t))
	require.NoError(t, os.Remove(file))
	got = w.run("status", "--subnets-from", file, "--json")
	require.Equal(t, exitNo, got.code)
	status := decode[client.HostStatus](t, got.out)
	require.False(t, *status.Ready)
	require.Contains(t, status.NotReady[0], file)
	require.Contains(t, status.Networks[0].NotReady, file)
	require.Regexp(t, `(?m)^error not-ready: .*`+file, w.run("doctor", "--subnets-from", file).out)
}

// TestStatusOfAnOverloadedDaemon: no plugin is blamed.
func TestStatusOfAnOverloadedDaemon(t *testing.T) {
	err := overloaded(fmt.Errorf("%w: %w", client.ErrNoAnswer, context.DeadlineExceeded))
	require.Equal(t, "the daemon is overloaded or hangs: try again, and look at its log (journalctl -u allocnetd)", hint(err))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, overloaded(nil))
	require.Equal(t, client.ErrUnavailable, overloaded(client.ErrUnavailable))
}

// TestStatusText has all parts of the overview.
func TestStatusText(t *testing.T) {
	last := time.Now().Add(-time.Minute)
	var out strings.Builder
	a := newApp(nil, &out, nil)
	a.printHostStatus(&client.HostStatus{
		Daemon: &client.DaemonStatus{Version: "v2", PID: 7, Started: time.Now().Add(-3 * time.Hour)}, Engine: configurator.EngineAuto,
		Networks: []client.NetworkStatus{
			{Name: "web", Default: true, Engine: "native", Addresses: map[string]client.AddressCounts{"ipv6": {Used: 2, Free: 1.8e19}, "ipv4": {Used: 2, Free: 0}}, Pool: &client.PoolCounts{Ready: 1, Size: 4}},
			{Name: "other", Engine: "exec"},
			{Name: "six", Engine: "native", Addresses: map[string]client.AddressCounts{"ipv6": {Used: 0, Free: 3 << 40}}},
		},
		Repairs: client.Repairs{Count: 3, Last: &last, Change: "table deleted by nft"},
		Doctor: &client.DoctorSummary{Errors: 1, Warnings: 2, Findings: []client.DoctorFinding{
			{ID: "forwarding-off", Severity: "error", What: "ip_forward is 0"}, {ID: "rp-filter", Severity: "warning", What: "eth0 is strict"},
		}},
		Errors: []client.RecentError{{Time: last, Operation: "setup", ID: "x", Error: "first\nsecond"}},
	})
	require.Equal(t, `Daemon       running for 3h, process 7, version v2
Engine       auto
Ready        not known
Allocations  none
Drift        none
Doctor       1 error, 2 warnings
Repairs      3 since the start, the last one 1m ago, table deleted by nft
Kernel       -
nft          not installed
iptables     not installed

NETWORK  DEFAULT  ENGINE  USED IPv4  FREE IPv4  USED IPv6  FREE IPv6  POOL
web      yes      native  2          0          2          2^64       1 of 4 ready
other    -        exec    -          -          -          -          -
six      -        native  -          -          0          2^41.6     -

DOCTOR (`+"`allocnet doctor`"+` says why they matter and what repairs them)
  error forwarding-off: ip_forward is 0
  warning rp-filter: eth0 is strict

LAST ERRORS
  1m ago  setup x: first; second
`, out.String())
	require.NoError(t, a.out.Failure())
}
