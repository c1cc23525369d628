package containerd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/sandbox"
)

// TestPodsKilled kills containerd and allocnetd while pods are started. After their
// restart, and the removal of all pods, nothing is left of the networks.
func TestPodsKilled(t *testing.T) {
	requireHost(t)
	for _, s := range []setup{dropIn, withDaemon} {
		t.Run(s.name+" containerd first", func(t *testing.T) { testPodsKilled(t, s, killContainerdFirst) })
		t.Run(s.name+" daemon first", func(t *testing.T) { testPodsKilled(t, s, killDaemonFirst) })
	}
}

// killContainerdFirst kills containerd while plugins wait for the daemon, which then
// serves them.
func killContainerdFirst(h *host, daemon *process.Process) {
	h.containerd.Kill()
	daemon.Signal(unix.SIGCONT)
	eventually(h.t, "no plugin runs", func() bool { return runningPlugins(h.t) == 0 })
	daemon.Kill()
}

// killDaemonFirst kills the daemon while plugins wait for it, and then containerd.
func killDaemonFirst(h *host, daemon *process.Process) {
	daemon.Kill()
	h.containerd.Kill()
}

// runningPlugins returns the number of processes that are a plugin of allocnet.
func runningPlugins(t testing.TB) (n int) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	for _, path := range paths {
		program, _ := os.Readlink(path) // the process may have ended
		if strings.HasPrefix(filepath.Base(program), "allocnet-") {
			n++
		}
	}
	return n
}

func testPodsKilled(t *testing.T, s setup, kill func(*host, *process.Process)) {
	plugins, daemon := s.begin(t)
	h := newHost(t, plugins)
	h.requireUnchanged()
	k := newKubelet(h)
	list := pods(50)
	ended, failed := make(chan struct{}, len(list)), make(chan []error)
	go func() {
		_, errs := k.each(list, func(ctx context.Context, p *pod) error {
			defer func() { ended <- struct{}{} }()
			return k.run(ctx, p)
		})
		failed <- errs
	}()
	for range 15 {
		<-ended
	}
	daemon.Signal(unix.SIGSTOP)
	eventually(t, "plugins wait for the daemon", func() bool { return runningPlugins(t) > 5 })
	kill(h, daemon)
	errs := <-failed
	require.NotEmpty(t, errs)
	require.Less(t, len(errs), len(list))

	h.start()
	startDaemon(t, daemon)
	k.ready()
	k.removeAll()
	records, err := client.New(client.Config{}).List(t.Context())
	require.NoError(t, err)
	require.Empty(t, records)
	// containerd forgets a namespace if it is killed before it notes the pod, which it
	// does before the first plugin runs.
	forgotten, err := filepath.Glob(sandbox.DefaultDir + "/cni-*")
	require.NoError(t, err)
	for _, path := range forgotten {
		require.NoError(t, sandbox.Destroy(path))
	}
	t.Logf("%d of %d calls ended with an error; containerd forgot %d namespaces", len(errs), len(list), len(forgotten))
}
