package main

import (
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPage serves the page as allocnet ui does, to those who can read the file with its URL.
func TestPage(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	p := w.start("--ui=127.0.0.1:0")
	w.allocate("a1")
	info, err := os.Stat(w.path("s.url"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	url, err := os.ReadFile(w.path("s.url"))
	require.NoError(t, err)
	base, token, found := strings.Cut(strings.TrimSpace(string(url)), "#token=")
	require.True(t, found)
	get := func(path, token string, into any) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		if into != nil {
			require.NoError(t, json.NewDecoder(answer.Body).Decode(into))
		}
		return answer.StatusCode
	}
	var state struct{ Allocations []struct{ ID string } }
	require.Equal(t, http.StatusOK, get("api/state", token, &state))
	require.Equal(t, "a1", state.Allocations[0].ID)
	var status struct{ Daemon struct{ PID int } }
	require.Equal(t, http.StatusOK, get("api/status", token, &status))
	require.Equal(t, p.cmd.Process.Pid, status.Daemon.PID)
	var latencies struct{ Operations []struct{ Operation string } }
	require.Equal(t, http.StatusOK, get("api/latencies", token, &latencies))
	require.NotEmpty(t, latencies.Operations)
	var report struct{ Checks []struct{ Name string } }
	require.Equal(t, http.StatusOK, get("api/doctor", token, &report))
	require.NotEmpty(t, report.Checks)
	require.Equal(t, http.StatusUnauthorized, get("api/state", "", nil))
	w.release("a1")
	require.NotContains(t, p.stop(), token, "the log has no token")
	require.NoFileExists(t, w.path("s.url"))
	require.NoFileExists(t, w.path("s"))
}

// TestPageFails: the error names the place of the setting. Nothing is left.
func TestPageFails(t *testing.T) {
	w := newWorkspace(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	address := l.Addr().String()
	for value, want := range map[string]string{
		address:        "d.hcl:5: ui: listen for the page: listen tcp " + address + ": bind: address already in use",
		"0.0.0.0:9654": `d.hcl:5: ui: "0.0.0.0:9654" is not a loopback address with a port`,
	} {
		w.configure(`ui = "` + value + `"`)
		out, err := w.command().CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Contains(t, string(out), want)
		require.NoFileExists(t, w.path("s"))
		require.NoFileExists(t, w.path("s.url"))
	}
}
