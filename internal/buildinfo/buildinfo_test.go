package buildinfo

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReleased(t *testing.T) {
	checkout := func() *debug.BuildInfo {
		return &debug.BuildInfo{
			Main:     debug.Module{Version: "(devel)"},
			Settings: []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, {Key: "GOOS", Value: "linux"}, {Key: "vcs.revision", Value: "old"}},
		}
	}
	require.Equal(t, checkout(), released(checkout(), "", "abc", "2026-01-02T03:04:05Z"), "a program that is no release")
	require.Nil(t, released(nil, "v1.2.3", "abc", ""))

	got := released(checkout(), "v1.2.3", "abc", "2026-01-02T03:04:05Z")
	require.Equal(t, "v1.2.3", got.Main.Version)
	require.Equal(t, []debug.BuildSetting{
		{Key: "GOOS", Value: "linux"}, {Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
	}, got.Settings)
}
