package journal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
)

// TestFormats reads a journal of each format that versions have written. The samples stay
// as they are: a change of the format adds one. A line without an end is not read.
func TestFormats(t *testing.T) {
	samples, err := filepath.Glob("testdata/formats/*.jsonl")
	require.NoError(t, err)
	require.Len(t, samples, 2)
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		require.NoError(t, err)
		dir := t.TempDir()
		file, _ := files(dir)
		require.NoError(t, os.WriteFile(file, text, 0o600))
		list := history(t, dir, "web", 0)
		require.Len(t, list, 2, sample)
		require.Equal(t, "setup", list[0].Operation)
		require.Equal(t, []string{"allocnet"}, list[0].Networks)
		require.Equal(t, allocnet.EngineNative, list[0].Engine)
		require.Len(t, list[0].Steps, 3)
		require.Equal(t, allocnet.StepAdd, list[0].Steps[1].Step)
		require.Equal(t, 0.092677663, list[0].Steps[1].Seconds)
		require.Equal(t, "incomplete", list[1].Kind)
		require.NotEmpty(t, list[1].Error)
		require.Equal(t, "no such plugin", list[1].Steps[0].Error)
		require.Equal(t, []allocnet.Leftover{{Kind: allocnet.KindLink, Object: "veth1"}}, list[1].Forced)

		if sample == "testdata/formats/2.jsonl" {
			require.Contains(t, history(t, dir, "db", 0)[0].Cause, "deletion of table")
		}
		next := New(dir, 1<<20, nil, func(err error) { t.Error(err) })
		next.Add(allocnet.HistoryEntry{Operation: "repair", ID: "web"}, nil)
		require.Len(t, history(t, dir, "web", 0), 3, "a later version appends to it")
	}
}
