package iptables

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// later returns the AcceptRule of a later process.
func (h *host) later(dir string) *AcceptRule {
	o := h.acceptRule()
	o.CacheIn(dir)
	return o
}

// counted replaces the programs by scripts that count their runs.
func (h *host) counted(t *testing.T) (runs func() int) {
	t.Helper()
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	programs := h.programs
	t.Cleanup(func() { h.programs = programs })
	for i, name := range []string{"a", "b"} {
		for _, suffix := range []string{"", "-restore"} {
			real, err := exec.LookPath(h.programs[i] + suffix)
			require.NoError(t, err)
			script := "#!/bin/sh\necho \"$0 $*\" >> " + log + "\nexec " + real + " \"$@\"\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, name+suffix), []byte(script), 0o755))
		}
		h.programs[i] = filepath.Join(dir, name)
	}
	return func() int {
		data, err := os.ReadFile(log)
		if err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		return strings.Count(string(data), "\n")
	}
}

// TestRuleIsRecognised: after a process has found the rule complete, later ones
// do not run iptables.
func TestRuleIsRecognised(t *testing.T) {
	h := newHost(t, "nf_tables")
	runs, dir := h.counted(t), filepath.Join(t.TempDir(), "made", "when needed")
	h.ensure(h.later(dir), "CNI-ADMIN")
	before := runs()
	later := h.later(dir)
	h.ensure(later, "CNI-ADMIN")
	for _, o := range []*AcceptRule{later, h.later(dir)} {
		require.NoError(t, o.Check(t.Context(), both, "CNI-ADMIN"))
	}
	require.Equal(t, before, runs())
	h.ensure(h.later(dir), "CNI-ADMIN", "MINE")
	require.Greater(t, runs(), before, "nobody has looked for that chain")
	before = runs()
	h.ensure(h.later(dir), "CNI-ADMIN", "MINE")
	require.Equal(t, before, runs())

	// The rule looks the same after it was created again.
	h.clear()
	h.ensure(h.acceptRule(), "CNI-ADMIN")
	before = runs()
	h.ensure(h.later(dir), "CNI-ADMIN")
	require.Equal(t, before, runs())

	// The program may be the other variant now, which has other tables.
	for _, program := range h.programs {
		script, err := os.ReadFile(program)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(program, append(script, "# new\n"...), 0o755))
	}
	h.ensure(h.later(dir), "CNI-ADMIN")
	require.Greater(t, runs(), before)
}

// TestDamageIsNotRecognised: a rule that iptables would not list as complete is
// repaired.
func TestDamageIsNotRecognised(t *testing.T) {
	h := newHost(t, "nf_tables")
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			defer h.clear()
			dir := t.TempDir()
			h.ensure(h.later(dir), "CNI-ADMIN")
			later := h.later(dir)
			require.NotNil(t, later.recognise(later.families[IPv4], []string{"CNI-ADMIN"}))
			for _, command := range damage.commands {
				h.each(command)
			}
			if damage.missing == "" {
				require.NoError(t, later.Check(t.Context(), both, "CNI-ADMIN"))
			} else {
				require.ErrorContains(t, later.Check(t.Context(), both, "CNI-ADMIN"), damage.missing)
			}
			h.ensure(h.later(dir), "CNI-ADMIN")
			h.rules(complete)
		})
	}
}

// TestLegacyRulesAreNotCachedOnDisk: the kernel does not show these rules.
func TestLegacyRulesAreNotCachedOnDisk(t *testing.T) {
	h := newHost(t, "legacy")
	dir := t.TempDir()
	for range 2 {
		h.ensure(h.later(dir), "CNI-ADMIN")
		h.rules(complete)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// TestCacheThatCannotBeWritten: without the cache, only the time differs.
func TestCacheThatCannotBeWritten(t *testing.T) {
	h := newHost(t, "nf_tables")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for range 2 {
		require.NoError(t, h.later(filepath.Join(file, "below")).Ensure(context.Background(), both, "CNI-ADMIN"))
		h.rules(complete)
	}
}
