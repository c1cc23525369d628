package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/programs"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// dropInDir installs the plugins for a runtime as links to the shim, with the command.
// The program that works without a daemon is beside the shim only after enable.
func dropInDir(t *testing.T) (dir string, enable func()) {
	t.Helper()
	bin, dir := t.TempDir(), t.TempDir()
	require.NoError(t, programs.Copy(bin, "allocnet", "allocnet-plugins", "allocnet-plugins-shim"))
	out, err := exec.Command(filepath.Join(bin, "allocnet"), "plugins", "install", dir, "--daemon").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "lead to "+bin+"/allocnet-plugins-shim")
	program := filepath.Join(bin, "allocnet-plugins")
	require.NoError(t, os.Rename(program, program+".away"))
	return dir, func() { require.NoError(t, os.Rename(program+".away", program)) }
}

// dropInUser is a runtime with go-cni, as containerd has it.
type dropInUser struct {
	gocni.CNI
	t testing.TB
	h *host
}

func (h *host) dropInUser(dir string, change ...func(plugins []map[string]any)) *dropInUser {
	h.T.Helper()
	plugins := testbed.Chain("bridge", testbed.Dual, "")
	for _, do := range change {
		do(plugins)
	}
	list, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "plugins": plugins})
	require.NoError(h.T, err)
	cni, err := gocni.New(gocni.WithPluginDir([]string{dir}), gocni.WithConfListBytes(list))
	require.NoError(h.T, err)
	return &dropInUser{cni, h.T, h}
}

// container is a container that answers with its name at a port of the host.
func (u *dropInUser) container(i int) *dropInContainer {
	u.t.Helper()
	c := &dropInContainer{id: fmt.Sprintf("c%d", i), port: 8080 + i}
	s, err := sandbox.Create(c.id)
	require.NoError(u.t, err)
	u.t.Cleanup(func() { _ = s.Destroy() }) // needed only after a failure
	c.sandbox, c.options = s, gocni.WithCapabilityPortMap([]gocni.PortMapping{{HostPort: int32(c.port), ContainerPort: 80, Protocol: "tcp"}})
	testbed.Serve(u.t, s.Path(), "tcp", 80, c.id)
	return c
}

type dropInContainer struct {
	id      string
	port    int
	sandbox *sandbox.Sandbox
	options gocni.NamespaceOpts
	// addresses are those of eth0, after add.
	addresses []netip.Addr
}

func (u *dropInUser) add(c *dropInContainer) error {
	result, err := u.Setup(u.t.Context(), c.id, c.sandbox.Path(), c.options)
	if err != nil {
		return err
	}
	c.addresses = nil
	for _, ip := range result.Interfaces["eth0"].IPConfigs {
		address, _ := netip.AddrFromSlice(ip.IP)
		c.addresses = append(c.addresses, address.Unmap())
	}
	return nil
}

func (u *dropInUser) check(c *dropInContainer) error {
	return u.Check(u.t.Context(), c.id, c.sandbox.Path(), c.options)
}

func (u *dropInUser) remove(c *dropInContainer) error {
	return errors.Join(u.Remove(u.t.Context(), c.id, c.sandbox.Path(), c.options), c.sandbox.Destroy())
}

func (u *dropInUser) requireAnswer(c *dropInContainer) {
	u.t.Helper()
	testbed.RequireAnswer(u.t, u.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, c.port), c.id)
	testbed.RequireAnswer(u.t, u.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, c.port), c.id)
}

// TestDaemonDropIns runs containers whose plugins the daemon runs; it sets up and checks
// several at the same time. What it has set up, the plugins check and remove without it,
// and it checks and removes what they have set up.
func TestDaemonDropIns(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	dir, enable := dropInDir(t)
	u := h.dropInUser(dir)
	containers := make([]*dropInContainer, 6)
	for i := range containers {
		containers[i] = u.container(i)
	}
	early, late := containers[:4], containers[4:]
	require.Error(t, u.add(early[0]), "nothing runs the plugins yet")
	d := h.startDaemon("")
	require.NoError(t, atOnce(early, u.add))
	for _, c := range early {
		u.requireAnswer(c)
	}
	require.NoError(t, atOnce(early, u.check))
	require.NoError(t, atOnce(early[:1], u.remove))
	d.term()

	enable()
	require.NoError(t, u.check(early[1]))
	require.NoError(t, atOnce(early[1:3], u.remove))
	testbed.RequireRefused(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, early[1].port))
	require.NoError(t, atOnce(late, u.add))
	d.begin()
	d.told("READY=1")
	for _, c := range append(late, early[3]) {
		require.NoError(t, u.check(c))
		u.requireAnswer(c)
	}
	require.NoError(t, atOnce(append(late, early[3]), u.remove))
	entries, err := os.ReadDir("/var/lib/cni/networks/net")
	require.NoError(t, err)
	for _, e := range entries {
		require.False(t, strings.HasPrefix(e.Name(), "10."), "%s is still leased", e.Name())
	}
}

// TestDaemonDropInFlush: after a flush of the ruleset, a container keeps its plain connectivity: while the daemon
// holds the guard, and after the next ADD makes it again, with the daemon and without it.
func TestDaemonDropInFlush(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	dir, enable := dropInDir(t)
	enable()
	u := h.dropInUser(dir)
	var running []*dropInContainer
	connected := func() {
		t.Helper()
		for _, c := range running {
			for _, address := range c.addresses {
				testbed.RequireAnswer(t, "", "tcp", testbed.At(address, 80), c.id)
			}
		}
	}
	start := func(i int) *dropInContainer {
		t.Helper()
		c := u.container(i)
		require.NoError(t, u.add(c))
		running = append(running, c)
		connected()
		return c
	}
	flush := func() {
		t.Helper()
		privhost.FlushRuleset(t)
		connected()
	}
	d := h.startDaemon("")
	first := start(0)
	flush()
	require.Contains(t, d.log(), "containers of plugin binaries keep their connectivity")
	require.ErrorContains(t, u.check(first), "has ended, because another program removed its rules")
	start(1)
	flush()
	d.term()
	start(2)
	flush()
	start(3)
	u.requireAnswer(running[3])
	d.begin()
	d.told("READY=1")
	start(4)
	require.NoError(t, atOnce(running, u.remove))
}

// atOnce calls a function for all containers at the same time.
func atOnce(containers []*dropInContainer, do func(*dropInContainer) error) error {
	errs := make(chan error)
	for _, c := range containers {
		go func() {
			err := do(c)
			if err != nil {
				err = fmt.Errorf("%s: %w", c.id, err)
			}
			errs <- err
		}()
	}
	var all []error
	for range containers {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// TestDropInPublishedOnly: a neighbour of the host reaches a container at its host ports only. The DEL with a
// configuration that has changed since removes the rules.
func TestDropInPublishedOnly(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	dir, enable := dropInDir(t)
	enable()
	testbed.Shell(t, "ip -n outside route add 10.99.0.0/24 via "+testhost.Host4.Addr().String()+" && ip -n outside route add fd00:99::/64 via "+testhost.Host6.Addr().String())
	u := h.dropInUser(dir, func(plugins []map[string]any) { plugins[2]["ingressPolicy"] = "published" })
	c := u.container(0)
	require.NoError(t, u.add(c))
	require.NoError(t, u.check(c))
	u.requireAnswer(c)
	for _, a := range c.addresses {
		testbed.RequireAnswer(t, "", "tcp", testbed.At(a, 80), c.id)
		testbed.RequireSilence(t, h.Outside.Path(), "tcp", testbed.At(a, 80))
	}
	require.NoError(t, h.dropInUser(dir).remove(c))
	out, err := exec.Command("nft", "list", "set", "ip", "allocnet", "published_only").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NotContains(t, string(out), "elements")
}
