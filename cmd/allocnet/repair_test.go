package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestRepairOfNothing(t *testing.T) {
	w := newWorkspace(t)
	require.Equal(t, "ok: healthy 0, repaired 0, broken 0\n", w.run("repair").ok(t))
	require.JSONEq(t, `{"healthy": [], "repaired": [], "broken": [], "reasons": {}}`, w.run("repair", "--json").ok(t))
}

// ailing sets up an allocation whose plugin reports a finding at its first
// CHECKs.
func (w *workspace) ailing(id string, checks fakeplugin.Behaviour) *sandbox.Sandbox {
	w.Helper()
	w.network("10-front", "front", map[string]fakeplugin.Behaviour{
		"ADD": {Result: result("10.9.0.2/24", "fd00:9::2/64")}, "CHECK": checks,
	})
	s := w.sandbox(id)
	w.run("setup", id, "--network", "front").ok(w.T)
	return s
}

// TestSetupOfWhatCannotBeRepaired: a finding alone leaves the network as it is. If its interface is gone, it is
// set up again, and the first line says what the warning explains.
func TestSetupOfWhatCannotBeRepaired(t *testing.T) {
	w := newWorkspace(t)
	s := w.ailing("web", fakeplugin.Behaviour{Code: 100, Msg: "the MTU is 9000", Only: 1})
	left := w.run("setup", "web", "--network", "front")
	require.Equal(t, exitNo, left.code)
	require.Regexp(t, "the MTU is 9000; .*left as it is: .* tear it down and set it up again", left.errOut)
	require.Regexp(t, "^ok: web is set up already\n", w.run("setup", "web", "--network", "front").ok(t))
	require.NoError(t, s.Do(func() error { return exec.Command("ip", "link", "del", "eth0").Run() }))
	text := w.run("setup", "web", "--network", "front").ok(t)
	require.Regexp(t, "^ok: web was set up again, because it could not be repaired\n", text)
	require.Regexp(t, "(?m)^warning: the network was set up again, .*: interface .*eth0.*", text)
	require.Regexp(t, "^ok: web is set up already\n", w.run("setup", "web", "--network", "front").ok(t))
}

func TestRepair(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("sound")
	w.run("setup", "sound", "--network", "back").ok(t)
	w.ailing("web", fakeplugin.Behaviour{Code: 100, Msg: "rules are gone", Only: 7}) // every CHECK of the first repair
	require.Equal(t, exitNo, w.run("repair").code, "what binaries made cannot be mended in place")
	require.Equal(t, "ok: healthy 2, repaired 0, broken 0\n", w.run("repair").ok(t))

	w.ailing("db", fakeplugin.Behaviour{Code: 100, Msg: "rules are gone"})
	got := w.run("repair")
	require.Equal(t, exitNo, got.code)
	require.Regexp(t, `^healthy 2, repaired 0, broken 1\n  broken   db: network is not as it was set up: .*rules are gone.*\n$`, got.out)
	require.Regexp(t, "^error: 1 allocation broken\nhint: repeat `allocnet setup` of a broken allocation", got.errOut)

	got = w.run("repair", "--json")
	failure := got.failure(t, exitNo)
	require.Equal(t, "unhealthy", failure.Kind)
	require.Equal(t, uint(100), failure.Code)
	report := decode[repairReport](t, got.out)
	require.Equal(t, configurator.RepairReport{Healthy: []string{"sound", "web"}, Repaired: []string{}, Broken: []string{"db"}}, report.RepairReport)
	require.Contains(t, report.Reasons["db"], "rules are gone")
	require.Regexp(t, "^network is not", report.Reasons["db"], "the ID stands beside it")
}

// TestRepairAfterAFlush has another program flush all rules of the host.
func TestRepairAfterAFlush(t *testing.T) {
	privhost.Require(t, "nft", "iptables")
	w := newWorkspace(t)
	w.sandbox("web")
	native := func(args ...string) outcome {
		return w.run(append(args, "--network", "allocnet", "--engine", "native")...)
	}
	native("setup", "web", "--port", "8080:80/tcp").ok(t)
	defer func() { native("teardown", "web").ok(t) }()
	require.Regexp(t, `(?m)^web +ready +allocnet +native `, w.run("ls").ok(t))
	require.Regexp(t, `(?m)^Engine +native$`, w.run("inspect", "web").ok(t))
	require.Equal(t, "ok: healthy 1, repaired 0, broken 0\n", w.run("repair").ok(t))

	out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, w.run("check", "web", "--json").failure(t, exitNo).Hint, "allocnet repair")
	require.Equal(t, "ok: healthy 0, repaired 1, broken 0\n  repaired web\n", w.run("repair").ok(t))
	w.run("check", "web").ok(t)
}

// TestRepairThatCannotLook: a check that cannot run is a failure, not a
// finding.
func TestRepairThatCannotLook(t *testing.T) {
	w := newWorkspace(t)
	w.ailing("web", fakeplugin.Behaviour{Exit: 2, Stderr: "out of luck"})
	require.NoError(t, os.WriteFile(w.path("state/allocs/torn.json"), []byte("{"), 0o600))
	got := w.run("repair", "--json")
	require.Equal(t, "not-checked", got.failure(t, exitFailure).Kind)
	report := decode[repairReport](t, got.out)
	require.Equal(t, []string{"torn", "web"}, report.Broken)
	require.Contains(t, report.Reasons["web"], "out of luck")
	require.Contains(t, report.Reasons["torn"], `record of allocation "torn"`)
}

// TestRepairWithoutAList fails, because it is unknown which allocations exist.
func TestRepairWithoutAList(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web", "--network", "back").ok(t)
	allocs := w.path("state/allocs")
	require.NoError(t, os.Rename(allocs, allocs+".away"))
	require.NoError(t, os.WriteFile(allocs, nil, 0o600))
	got := w.run("repair")
	require.Equal(t, exitFailure, got.code)
	require.Contains(t, got.errOut, "list records")
	require.Equal(t, "healthy 0, repaired 0, broken 0\n", got.out)
}

func TestReasonsOfARepair(t *testing.T) {
	broken := &configurator.RepairReport{Broken: []string{"a", "b"}}
	unhealthy := func(id, why string) error {
		return &configurator.AllocationError{ID: id, Err: fmt.Errorf("allocation %q: %w: %s", id, configurator.ErrUnhealthy, why)}
	}
	list := errors.New("list records")
	report, err := newRepairReport(broken, errors.Join(list, unhealthy("a", `port of allocation "b"`), unhealthy("b", `port of allocation "a"`), context.Canceled))
	require.Equal(t, map[string]string{
		"a": `network is not as it was set up: port of allocation "b"`, "b": `network is not as it was set up: port of allocation "a"`,
	}, report.Reasons)
	require.EqualError(t, err, "2 allocations broken\nlist records\ncontext canceled", "what is nobody's is said")
	for _, cause := range []error{list, configurator.ErrUnhealthy, context.Canceled} {
		require.ErrorIs(t, err, cause)
	}

	report, err = newRepairReport(broken, errors.Join(list))
	require.Empty(t, report.Reasons)
	require.EqualError(t, err, "list records")
	_, err = newRepairReport(&configurator.RepairReport{}, nil)
	require.NoError(t, err)
}

// TestRepairBothWays: the report is the same with and without the daemon.
func TestRepairBothWays(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	w.ailing("web", fakeplugin.Behaviour{Code: 100, Msg: "rules are gone"})
	w.ailing("db", fakeplugin.Behaviour{Code: 100, Msg: "rules are gone"})
	require.NoError(t, os.WriteFile(w.path("state/allocs/torn.json"), []byte("{"), 0o600))
	for _, args := range [][]string{{"repair"}, {"repair", "--json"}, {"gc", "--live", "db", "--live", "web"}, {"gc", "--live", "web", "--live", "db", "--json"}} {
		alone, asked := w.run(args...), ask(args...)
		require.Equal(t, alone, asked, args)
		require.NotEqual(t, exitOK, alone.code)
	}
	report := decode[repairReport](t, ask("repair", "--json").out)
	require.Len(t, report.Reasons, 3)
	require.Regexp(t, "^network is not", report.Reasons["web"])
}

// TestPortTakenBothWays: the error names the owner of a port that is only in
// the kernel.
func TestPortTakenBothWays(t *testing.T) {
	privhost.Require(t, "nft", "iptables")
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	native := func(args ...string) outcome {
		return w.run(append(args, "--network", "allocnet", "--engine", "native")...)
	}
	w.sandbox("web")
	native("setup", "web", "--port", "8080:80/tcp").ok(t)
	defer func() { native("teardown", "web").ok(t) }()
	require.NoError(t, os.Remove(w.path("state/allocs/web.json")))
	w.sandbox("other")
	for _, more := range [][]string{nil, {"--json"}} {
		alone := native(append(more, "setup", "other", "--port", "8080:80/tcp")...)
		asked := ask(append(more, "setup", "other", "--port", "8080:80/tcp", "--network", "allocnet")...)
		require.Equal(t, alone, asked)
		require.Equal(t, exitFailure, asked.code)
		require.Contains(t, asked.errOut, "allocnet teardown web")
	}
}
