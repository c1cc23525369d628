package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/shard"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"CNI_PATH", "ALLOCNET_NETWORK", "ALLOCNET_STATE_DIR", "ALLOCNET_ENGINE"} {
		os.Unsetenv(name)
	}
	os.Exit(shard.Main(m, 2, func() int { return privhost.Main(m) }))
}

// outcome is the result of one run of the program.
type outcome struct {
	code        int
	out, errOut string
}

// runWith runs the program in this process.
func runWith(stdin string, args ...string) outcome {
	var out, errOut bytes.Buffer
	code := run(context.Background(), args, strings.NewReader(stdin), &out, &errOut)
	return outcome{code, out.String(), errOut.String()}
}

// ok requires success and returns the output.
func (o outcome) ok(t *testing.T) string {
	t.Helper()
	require.Equal(t, exitOK, o.code, o.out+o.errOut)
	return o.out
}

// failure requires an exit code and returns the error, which must be JSON.
func (o outcome) failure(t *testing.T, code int) errorReport {
	t.Helper()
	require.Equal(t, code, o.code, o.out+o.errOut)
	return decode[errorReport](t, o.errOut)
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&v), text)
	require.False(t, d.More(), text)
	return v
}

// workspace is a host with fake plugins and two networks: "front", the default,
// and "back".
type workspace struct {
	*testing.T
	dir    string
	socket string // socket of its daemon, if there is one
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	w := &workspace{T: t, dir: t.TempDir()}
	libcni.CacheDir = w.path("state/cni-cache") // or a test without the command would use that of an earlier test
	require.NoError(t, fakeplugin.Install(w.path("plugins"), "fake"))
	require.NoError(t, os.Mkdir(w.path("conf"), 0o755))
	w.network("10-front", "front", map[string]fakeplugin.Behaviour{"ADD": {Result: result("10.9.0.2/24", "fd00:9::2/64")}})
	w.network("20-back", "back", map[string]fakeplugin.Behaviour{"ADD": {Result: result("10.9.1.2/24")}})
	return w
}

func (w *workspace) path(name string) string { return filepath.Join(w.dir, name) }

// network writes a configuration.
func (w *workspace) network(file, name string, on map[string]fakeplugin.Behaviour) {
	w.Helper()
	data, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": []any{map[string]any{
		"type": "fake", "capabilities": map[string]bool{"portMappings": true, "dns": true, "bandwidth": true, "ips": true, "mac": true},
		"fake": fakeplugin.Config{Log: w.path("log"), On: on, Interface: []string{"10.9.0.2/24", "fd00:9::2/64", "10.9.1.2/24"}},
	}}})
	require.NoError(w, err)
	require.NoError(w, os.WriteFile(w.path("conf/"+file+".conflist"), data, 0o600))
}

// result returns a CNI result whose addresses belong to the requested
// interface.
func result(addresses ...string) json.RawMessage {
	ips := make([]map[string]string, len(addresses))
	for i, a := range addresses {
		ips[i] = map[string]string{"address": a}
	}
	data, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "ips": ips})
	return data
}

// flags returns the flags that select the directories of this workspace.
func (w *workspace) flags() []string {
	return []string{"--conf-dir", w.path("conf"), "--state-dir", w.path("state"), "--plugin-dir", w.path("plugins")}
}

// withFlags adds these flags to a command line.
func (w *workspace) withFlags(args []string) []string { return withAccepted(args, w.flags()) }

// withAccepted adds those flags to a command line that its command accepts. Each one has a value.
func withAccepted(args, flags []string) []string {
	c, _, err := newRoot(newApp(nil, nil, nil)).Find(args)
	with := slices.Clone(args)
	for flag := range slices.Chunk(flags, 2) {
		if err != nil || slices.Contains(acceptedBy(c), flag[0][2:]) {
			with = append(with, flag...)
		}
	}
	return with
}

func (w *workspace) run(args ...string) outcome {
	return runWith("", w.withFlags(args)...)
}

// sandbox creates a network namespace.
func (w *workspace) sandbox(name string) *sandbox.Sandbox {
	w.Helper()
	privhost.Require(w)
	s, err := sandbox.Create(name)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, s.Destroy()) })
	return s
}

func (w *workspace) commands() []string {
	w.Helper()
	commands, err := fakeplugin.Commands(w.path("log"))
	require.NoError(w, err)
	return commands
}

// TestDoubledSignalIsOne: otherwise the second signal would end the process.
func TestDoubledSignalIsOne(t *testing.T) {
	ctx := interruptible(t.Context())
	for range 1000 {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
		<-ctx.Done()
	}
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}
