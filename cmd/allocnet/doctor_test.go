package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestDoctor(t *testing.T) {
	privhost.Require(t, "nft", "iptables")
	w := newWorkspace(t)
	require.Equal(t, "ok: 15 checks, nothing found\n", w.run("doctor").ok(t))
	report := decode[doctorReport](t, w.run("doctor", "--json").ok(t))
	require.True(t, report.Healthy)
	require.NotNil(t, report.Findings)

	stale := filepath.Join(sandbox.DefaultDir, "stale")
	require.NoError(t, os.MkdirAll(sandbox.DefaultDir, 0o755))
	require.NoError(t, os.WriteFile(stale, nil, 0o444))
	require.NoError(t, record.Open(w.path("state")).AddSandbox("stale", record.Sandbox{Path: stale}))
	require.NoError(t, os.Chtimes(stale, time.Time{}, time.Now().Add(-time.Hour)))
	require.NoError(t, os.WriteFile(w.path("conf/30-broken.conflist"), []byte("{"), 0o600))
	got := w.run("doctor")
	require.Equal(t, exitNo, got.code)
	require.Regexp(t, `(?m)^error configuration-skipped: .*30-broken.conflist.*\n  why     .+\n  repair  correct `, got.out)
	require.Regexp(t, `(?m)^warning netns-stale: .*\n  why     .+\n  repair  rm /run/netns/stale\n {10}allocnet doctor --fix does so$`, got.out)
	require.Contains(t, got.errOut, "hint: `allocnet doctor --fix` makes the repairs of 1 finding\n")
	require.FileExists(t, stale, "nothing changes without --fix")

	got = w.run("doctor", "--json")
	require.Equal(t, "findings", got.failure(t, exitNo).Kind)
	report = decode[doctorReport](t, got.out)
	require.False(t, report.Healthy)
	require.Equal(t, []string{"configuration-skipped", "netns-stale"}, idsOf(report.Findings))

	got = w.run("doctor", "--fix", "--json")
	require.Empty(t, got.failure(t, exitNo).Hint, "what has no safe repair is left")
	report = decode[doctorReport](t, got.out)
	require.Equal(t, []string{"configuration-skipped"}, idsOf(report.Findings))
	require.Equal(t, []string{"netns-stale"}, idsOf(report.Fixed))
	require.True(t, report.Fixed[0].Fixed)
	require.NoFileExists(t, stale)
	require.NoError(t, os.Remove(w.path("conf/30-broken.conflist")))
	require.Equal(t, "ok: 15 checks, nothing found\n", w.run("doctor", "--fix").ok(t))
}

func idsOf(findings []doctor.Finding) (ids []string) {
	for _, f := range findings {
		ids = append(ids, f.ID)
	}
	return ids
}

// TestDoctorHelp: the help lists what --fix does, for each kind that it repairs.
// TestDoctorOfAnOpenStateDirectory: other users can replace the settings of the daemon there, which
// are ignored then; that is a finding, not the end of the command.
func TestDoctorOfAnOpenStateDirectory(t *testing.T) {
	w := newWorkspace(t)
	s := settings.Default()
	s.StateDir = w.path("open")
	require.NoError(t, os.Mkdir(s.StateDir, 0o700))
	require.NoError(t, s.Write(filepath.Join(s.StateDir, "s.settings")))
	require.NoError(t, os.Chmod(s.StateDir, 0o777))
	require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
	require.NoError(t, os.Mkdir(configurator.DefaultStateDir, 0o777))
	require.NoError(t, os.Chmod(configurator.DefaultStateDir, 0o777))
	defer os.RemoveAll(configurator.DefaultStateDir)
	got := runWith("", "doctor", "--socket", filepath.Join(s.StateDir, "s"), "--no-daemon", "--conf-dir", w.path("conf"))
	require.Contains(t, got.errOut, "the daemon's last settings are ignored")
	require.Contains(t, got.out, "error state-dir: ")
	require.Equal(t, exitNo, got.code)
	require.Equal(t, exitFailure, runWith("", "ls", "--socket", filepath.Join(s.StateDir, "s"), "--no-daemon").code)
}

func TestDoctorHelp(t *testing.T) {
	help := runWith("", "doctor", "--help").ok(t)
	for _, k := range doctor.Kinds {
		if !k.Safe {
			require.NotContains(t, safeRepairs, k.ID)
			continue
		}
		require.NotEmpty(t, safeRepairs[k.ID], k.ID)
		require.Contains(t, help, k.ID)
	}
}

// TestRepairOfUnreadableRecords: the printed command tears down only if inspect says that the record
// cannot be read.
func TestRepairOfUnreadableRecords(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	file := w.path("state/allocs/web.json")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	readable := w.run("inspect", "web", "--json")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	unreadable := w.run("inspect", "web", "--json")
	report := decode[doctorReport](t, w.run("doctor", "--json").out)
	i := slices.IndexFunc(report.Findings, func(f doctor.Finding) bool { return f.ID == "record-unreadable" })
	require.GreaterOrEqual(t, i, 0)
	command, _, _ := strings.Cut(report.Findings[i].Repair, " (")
	require.NoError(t, os.WriteFile(file, text, 0o600))

	program := `#!/bin/sh
case $1 in
inspect) echo "$OUT"; echo "$ERR" >&2; exit $CODE ;;
teardown) echo "$@" ;;
esac
`
	require.NoError(t, os.WriteFile(w.path("allocnet"), []byte(program), 0o755))
	for name, c := range map[string]struct {
		inspect outcome
		want    string
	}{
		"readable":    {readable, ""},
		"unreadable":  {unreadable, "teardown web --netns PATH\n"},
		"torn down":   {w.run("inspect", "none", "--json"), ""},
		"busy daemon": {outcome{code: exitFailure, errOut: `{"error":"too many requests","kind":"busy"}`}, ""},
		"no program":  {outcome{code: 127, errOut: "allocnet: not found"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			run := exec.Command("sh", "-c", command)
			run.Env = append(os.Environ(), "PATH="+w.dir+":"+os.Getenv("PATH"), "OUT="+c.inspect.out, "ERR="+c.inspect.errOut, fmt.Sprintf("CODE=%d", c.inspect.code))
			out, _ := run.Output()
			require.Equal(t, c.want, string(out))
		})
	}
}
