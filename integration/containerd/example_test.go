package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/ociimage"
	"github.com/allocnet/allocnet/internal/testing/process"
)

// example is examples/containerd, which runs the container "web" with a host port.
type example struct {
	*process.Process
	h      *host
	client *containerd.Client
	nets   *configurator.Configurator // to look at the records
}

// newExample returns an example that is not started yet. It has its own resolv.conf of
// the host, and a network that gives its containers another one.
func newExample(t *testing.T, h *host, network string, more ...string) *example {
	t.Helper()
	h.requireUnchanged()
	bin, err := programs()
	require.NoError(t, err)
	nets, err := configurator.New(configurator.Config{OneShot: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, nets.Close()) })
	args := append([]string{filepath.Join(bin, "example"), "-address", h.socket, "-network", network, "-publish", "8080:80"}, more...)
	e := &example{process.New(t, append(append(args, "web", ociimage.Name), server...)...), h, h.client("allocnet-example"), nets}
	e.Env = []string{"TMPDIR=" + h.dir} // for mounts that a killed example leaves
	t.Cleanup(e.clean)
	return e
}

// clean removes what a failed test left, so that later tests are not affected.
func (e *example) clean() {
	if exists("/run/allocnet-example/web") {
		e.Kill()
		e.run()
		e.Terminate()
	}
}

// run starts the example and waits until its container serves its files.
func (e *example) run() {
	e.h.t.Helper()
	require.True(e.h.t, e.tryRun(), e.Output())
	e.h.requireGet(8080, "/etc/hosts")
}

// tryRun starts the example and reports whether it has started its container.
func (e *example) tryRun() bool {
	e.h.t.Helper()
	before := len(e.Output())
	e.Start()
	runs := func() bool { return strings.Contains(e.Output()[before:], " runs at ") }
	eventually(e.h.t, "the container runs", func() bool { return runs() || e.HasEnded() })
	return runs()
}

// runAgain is run after the example was killed. It starts the example repeatedly, as a
// supervisor does: containerd may still be creating the task of the killed process.
func (e *example) runAgain() {
	e.h.t.Helper()
	for range 20 {
		if e.tryRun() {
			e.h.requireGet(8080, "/etc/hosts")
			return
		}
	}
	require.Fail(e.h.t, "the example does not run", e.Output())
}

// named returns an example that runs a container with another name, and has ended.
func (e *example) named(name string) *process.Process {
	e.h.t.Helper()
	args := slices.Clone(e.Args)
	args[slices.Index(args, "web")] = name
	p := process.New(e.h.t, args...)
	p.Start()
	p.Wait()
	return p
}

// requireNothing checks that nothing of the container is left in containerd, in the
// records and in the file system.
func (e *example) requireNothing() {
	e.h.t.Helper()
	containers, err := e.client.Containers(e.h.t.Context())
	require.NoError(e.h.t, err)
	require.Empty(e.h.t, containers)
	require.NoError(e.h.t, e.client.SnapshotService("overlayfs").Walk(e.h.t.Context(), func(_ context.Context, i snapshots.Info) error {
		require.Equal(e.h.t, snapshots.KindCommitted, i.Kind, "%s is of a container", i.Name)
		return nil
	}))
	records, err := e.nets.List(e.h.t.Context())
	require.NoError(e.h.t, err)
	require.Empty(e.h.t, records)
	require.NoDirExists(e.h.t, "/run/allocnet-example/web")
}

// network writes a network with DNS servers of its own.
func network(t testing.TB, name, main string) {
	t.Helper()
	list, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": chain(main)})
	require.NoError(t, err)
	path := filepath.Join("/etc/cni/net.d", name+".conflist")
	require.NoError(t, os.WriteFile(path, list, 0o600))
	t.Cleanup(func() { require.NoError(t, os.Remove(path)) })
}

// chain returns the plugins of a network as schedulers and runtimes configure it.
func chain(main string) []map[string]any {
	first := map[string]any{"type": main, "ipMasq": true, "dns": map[string]any{"nameservers": []string{"10.98.0.53"}}, "ipam": map[string]any{
		"type": "host-local", "routes": []any{map[string]any{"dst": "0.0.0.0/0"}, map[string]any{"dst": "::/0"}},
		"ranges": []any{[]any{map[string]any{"subnet": "10.98.0.0/16"}}, []any{map[string]any{"subnet": "fd00:98::/64"}}},
	}}
	if main == "bridge" {
		first["bridge"], first["isGateway"], first["hairpinMode"] = "br-test", true, true
	}
	return []map[string]any{first, {"type": "firewall"}, {"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}}}
}

// TestExample runs a container with examples/containerd: in a network namespace that
// Setup makes, and in one of a pool.
func TestExample(t *testing.T) {
	requireHost(t)
	for _, test := range []struct{ name, network, resolvers string }{
		{"embedded", "allocnet", "nameserver 192.0.2.53\n"}, {"bridge", "net", "nameserver 10.98.0.53\n"},
	} {
		for _, pool := range []string{"0", "2"} {
			t.Run(test.name+" pool "+pool, func(t *testing.T) {
				resolvConf(t, "nameserver 192.0.2.53\n")
				network(t, "net", "bridge")
				h := newHost(t, "")
				e := newExample(t, h, test.network, "-pool", pool)
				e.run()
				record, err := e.nets.Get(t.Context(), "web")
				require.NoError(t, err)
				for i := 0; i < 20 && pool != "0" && record.ContainerID == ""; i++ { // Setup came before the pool was ready
					e.Kill()
					e.run()
					record, err = e.nets.Get(t.Context(), "web")
					require.NoError(t, err)
				}
				require.Equal(t, pool == "0", record.ContainerID == "", "its network namespace is not from the pool")
				hosts := string(allocnet.Hosts(record.Status, "web"))
				require.Contains(t, hosts, record.Status.Address+"\tweb\n")
				require.Equal(t, hosts, h.requireGet(8080, "/etc/hosts"))
				require.Equal(t, test.resolvers, h.requireGet(8080, "/etc/resolv.conf"))
				require.Contains(t, e.Output(), fmt.Sprintf("web runs at %s\n", record.Status.Address))
				e.Terminate()
				_, err = h.get(8080, "/")
				require.ErrorIs(t, err, unix.ECONNREFUSED)
				e.requireNothing()
			})
		}
	}
}

// resolvConf replaces the content of the host's resolv.conf until the test ends.
func resolvConf(t testing.TB, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	require.NoError(t, unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH)) })
}

// TestExampleKilled kills the example when it has made its container, its network, its
// task, and when it runs. The container goes on; the next run with its name replaces it,
// and leaves nothing at its end.
func TestExampleKilled(t *testing.T) {
	for name, reached := range map[string]func(e *example) bool{
		"snapshot": func(e *example) bool {
			_, err := e.client.SnapshotService("overlayfs").Stat(e.h.t.Context(), "web")
			return err == nil
		},
		"container": func(e *example) bool {
			_, err := e.client.LoadContainer(e.h.t.Context(), "web")
			return err == nil
		},
		"network": func(e *example) bool {
			_, err := e.nets.Get(e.h.t.Context(), "web")
			return err == nil
		},
		"task": func(e *example) bool {
			return exists(e.h.dir + "/state/io.containerd.runtime.v2.task/allocnet-example/web/init.pid")
		},
		"running": func(e *example) bool { return strings.Contains(e.Output(), " runs at ") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "")
			e := newExample(t, h, "allocnet", "-pool", "2")
			e.Start()
			eventually(t, name, func() bool { return reached(e) || e.HasEnded() })
			e.Kill()
			if name == "running" {
				h.requireGet(8080, "/etc/hosts")
			}
			e.runAgain()
			e.Terminate()
			e.requireNothing()
		})
	}
}

// TestExampleWithoutContainerd kills containerd while the example runs, which then ends
// with an error. The container goes on; the next run with its name replaces it.
func TestExampleWithoutContainerd(t *testing.T) {
	h := newHost(t, "")
	e := newExample(t, h, "allocnet")
	e.run()
	h.containerd.Kill()
	e.Wait()
	require.False(t, e.Succeeded())
	h.requireGet(8080, "/etc/hosts")
	h.start()
	e.run()
	e.Terminate()
	e.requireNothing()
}

// TestExampleConflict: the example reports why a container could not be started, and
// leaves nothing of it.
func TestExampleConflict(t *testing.T) {
	h := newHost(t, "")
	first := newExample(t, h, "allocnet")
	first.run()
	second := first.named("second")
	require.Contains(t, second.Output(), `host port conflict with tcp port 8080 on all addresses of allocation "web"`)
	_, err := first.client.LoadContainer(t.Context(), "second")
	require.True(t, errdefs.IsNotFound(err), "%v", err)
	h.requireGet(8080, "/etc/hosts")
	first.Terminate()
	first.requireNothing()
}

// TestExampleName: a name that leads out of the directory of the containers' files is
// refused, and removes nothing.
func TestExampleName(t *testing.T) {
	e := newExample(t, newHost(t, ""), "allocnet")
	require.NoError(t, os.MkdirAll("/run/allocnet-example-other", 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll("/run/allocnet-example-other")) })
	require.Contains(t, e.named("../allocnet-example-other").Output(), "invalid allocation")
	require.DirExists(t, "/run/allocnet-example-other")
	e.requireNothing()
}
