package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/bench"
	"github.com/allocnet/allocnet/sandbox"
)

// TestBench measures without plugin binaries, in place: the tests run in a private host.
func TestBench(t *testing.T) {
	w := newWorkspace(t)
	chart := w.path("bench.svg")
	got := w.run("bench", "--short", "--chart", chart)
	made, err := filepath.Glob(filepath.Join(sandbox.DefaultDir, "bench-*"))
	require.NoError(t, err)
	require.NotEmpty(t, made)
	for _, path := range made {
		require.NoError(t, sandbox.Destroy(path))
	}
	out := got.ok(t)
	require.Regexp(t, `(?m)^ADD, ptp +baseline +\S+ .?s +\S+ .?s +20 +1\.00x +-$`, out)
	require.Regexp(t, `(?m)^ +native +\S+ .?s +\S+ .?s +20 +\d\S+x +-$`, out)
	require.Regexp(t, `(?m)^exec is not measured: no directory has the reference plugins: looked in `, out)
	require.Regexp(t, `(?m)^ok: a setup takes \d+\.\d times as long as the bare kernel calls$`, out)

	drawn, err := os.ReadFile(chart)
	require.NoError(t, err)
	for d := xml.NewDecoder(strings.NewReader(string(drawn))); ; {
		if _, err = d.Token(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}
	require.Contains(t, string(drawn), "How long does a start take?")
}

// TestBenchThatFails leaves no empty chart, and the old content of another one.
func TestBenchThatFails(t *testing.T) {
	w := newWorkspace(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fail := func(chart string) {
		var out, errOut strings.Builder
		require.Equal(t, exitFailure, run(ctx, w.withFlags([]string{"bench", "--short", "--chart", chart, "--json"}), nil, &out, &errOut))
		require.Empty(t, out.String())
		var report errorReport
		require.NoError(t, json.Unmarshal([]byte(errOut.String()), &report))
		require.Equal(t, "canceled", report.Kind)
	}
	chart := w.path("new.svg")
	fail(chart)
	require.NoFileExists(t, chart)
	require.NoError(t, os.WriteFile(chart, []byte("old"), 0o600))
	fail(chart)
	old, err := os.ReadFile(chart)
	require.NoError(t, err)
	require.Equal(t, "old", string(old))

	got := w.run("bench", "--chart", w.path("missing/new.svg"))
	require.Equal(t, exitFailure, got.code)
	require.Contains(t, got.errOut, "error: write chart: open ")
}

func TestWriteChart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "chart.svg")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("longer than a chart", 1000)), 0o600))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, errors.Join(writeChart(file, &bench.Report{}), closeChart(file)))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(text), "</svg>\n"))
}

func TestRatios(t *testing.T) {
	r := &bench.Report{Measures: []bench.Measure{
		{What: "ADD, ptp", System: "baseline", Median: 1}, {What: "ADD, ptp", System: "native", Median: 2},
	}}
	require.Equal(t, "a setup takes 2.0 times as long as the bare kernel calls", ratios(r))
	r.Measures = append(r.Measures, bench.Measure{What: "ADD, ptp", System: "exec", Median: 200},
		bench.Measure{What: "DEL, ptp", System: "native", Median: 20}, bench.Measure{What: "DEL, ptp", System: "exec", Median: 240})
	require.Equal(t, "a setup takes 2.0 times as long as the bare kernel calls; "+
		"with plugin binaries 100 times as long as with allocnet, and a teardown 12 times", ratios(r))
}
