package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

// TestHistory: what was done stays visible after the teardown.
func TestHistory(t *testing.T) {
	w := newWorkspace(t)
	require.Contains(t, w.run("history").errOut, "no operation is in the journal")
	require.JSONEq(t, "[]", w.run("history", "--json").ok(t))
	w.sandbox("web")
	w.run("setup", "web", "--json", "--port", "8080:80").ok(t)
	w.sandbox("other")
	refused := w.run("setup", "other", "--port", "8080:80", "--json").failure(t, exitFailure)
	require.Equal(t, "port-conflict", refused.Kind)
	w.run("teardown", "web").ok(t)

	list := decode[[]configurator.HistoryEntry](t, w.run("history", "web", "--json").ok(t))
	require.Len(t, list, 2)
	require.Equal(t, []string{"setup", "teardown"}, []string{list[0].Operation, list[1].Operation})
	require.Equal(t, []string{"front"}, list[0].Networks)
	require.Equal(t, configurator.EngineExec, list[0].Engine)
	steps := map[string]bool{}
	for _, s := range list[0].Steps {
		require.LessOrEqual(t, s.At+s.Seconds, list[0].Seconds)
		steps[s.Step] = true
	}
	require.Equal(t, map[string]bool{"lock": true, "plan": true, "reserve": true, "add": true, "record": true}, steps)

	text := w.run("history", "web").ok(t)
	require.Regexp(t, `(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  setup front exec ok in \S+, by \S+\[\d+\]$`, text)
	require.Regexp(t, `(?m)^    del +\S+$`, text)
	text = w.run("history").ok(t)
	require.Regexp(t, `(?m)^TIME +OPERATION +ID +TOOK +PROGRAM +RESULT$`, text)
	require.Regexp(t, `(?m) setup +other +\S+ +\S+ +port-conflict: .*tcp port 8080`, text)
	require.Len(t, decode[[]configurator.HistoryEntry](t, w.run("logs", "-n", "1", "--json").ok(t)), 1)

	require.Contains(t, w.run("history", "nobody", "--json").failure(t, exitNo).Error, `no operation on "nobody"`)
	require.Contains(t, w.run("history", "--limit", "0", "--json").failure(t, exitUsage).Error, "--limit 0")
}

// TestHistoryOfSeveralErrors: all lines of a text begin in the same column.
func TestHistoryOfSeveralErrors(t *testing.T) {
	var out bytes.Buffer
	a := newApp(strings.NewReader(""), &out, io.Discard)
	a.printEntry(&configurator.HistoryEntry{
		Operation: "setup", ID: "web", Seconds: 1, Error: "one\ntwo", Kind: "plugin",
		Steps: []configurator.HistoryStep{{Step: "add", Seconds: 1, Error: "three\nfour"}, {Step: "del", Seconds: 1, Error: "one\ntwo"}},
	})
	_, lines, _ := strings.Cut(out.String(), "\n")
	require.Equal(t, `    add                1s  three
                           four
    del                1s  failed
    error: one
           two
`, lines)
	out.Reset()
	a.out.Table(nil, [][]term.Cell{term.Cells("web", "one\ntwo words", "x")})
	require.Equal(t, "web  one        x\n     two words\n", out.String())
}

// TestHistoryCause: why something was restored is shown.
func TestHistoryCause(t *testing.T) {
	var out bytes.Buffer
	a := newApp(strings.NewReader(""), &out, io.Discard)
	a.printEntry(&configurator.HistoryEntry{Operation: "repair", ID: "web", Seconds: 1, Cause: `deletion of table ip allocnet by "nft" (process 7)`})
	_, lines, _ := strings.Cut(out.String(), "\n")
	require.Equal(t, "    cause: deletion of table ip allocnet by \"nft\" (process 7)\n", lines)
}

// TestHistoryOfRuntimes: short forms of IDs work without a record.
func TestHistoryOfRuntimes(t *testing.T) {
	w := newWorkspace(t)
	const id, twin = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "0123ffff89abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, one := range []string{id, twin} {
		w.sandbox(one[:8])
		w.run("setup", one, "--netns", "/run/netns/"+one[:8]).ok(t)
		w.run("teardown", one).ok(t)
	}
	require.Len(t, decode[[]configurator.HistoryEntry](t, w.run("history", "01234567", "--json").ok(t)), 2)
	require.Contains(t, w.run("history", "0123", "--json").failure(t, exitUsage).Error, twin)
	require.Contains(t, w.run("history").ok(t), " "+id[:12]+" ")
}
