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

// TestPagePortIsTaken: the daemon runs without the page, and serves it when the port is free. The URL of
// a daemon that was killed is gone: another user has its port.
func TestPagePortIsTaken(t *testing.T) {
	w := newWorkspace(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	w.configure(`ui = "` + address + `"`)
	w.write("s.url", "http://"+address+"/#token=old")
	p := w.start()
	require.NoFileExists(t, w.path("s.url"))
	status, err := w.client().HostStatus(t.Context())
	require.NoError(t, err)
	require.Len(t, status.Daemon.Problems, 1)
	require.Contains(t, status.Daemon.Problems[0], "d.hcl:5: ui: listen for the page: listen tcp "+address+": bind: address already in use")
	require.NoError(t, l.Close())
	p.logged("serving the page")
	require.FileExists(t, w.path("s.url"))
	p.stop()
	require.NoFileExists(t, w.path("s.url"))
}

// TestPageFails: the error names the place of the setting. Nothing is left.
func TestPageFails(t *testing.T) {
	w := newWorkspace(t)
	w.configure(`ui = "0.0.0.0:9654"`)
	out, err := w.command().CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Contains(t, string(out), `d.hcl:5: ui: "0.0.0.0:9654" is not a loopback address with a port`)
	require.NoFileExists(t, w.path("s"))
	require.NoFileExists(t, w.path("s.url"))
}
