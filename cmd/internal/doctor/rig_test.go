package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	realhost "github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/shard"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// helperVariable makes the test binary make one check and print what it found.
const helperVariable = "ALLOCNET_TEST_DOCTOR"

// aloneVariable says that the test binary runs one test on a private host of its own.
const aloneVariable = "ALLOCNET_TEST_DOCTOR_ALONE"

func TestMain(m *testing.M) {
	_ = os.Setenv("PATH", pluginexec.CompletePath(os.Getenv("PATH")))
	h := &Host{Full: 0.8, NetnsDir: "/nowhere"}
	for name, look := range map[string]func() ([]Finding, error){"inotify": h.inotify, "namespaces": h.namespaces} {
		if os.Getenv(helperVariable) == name {
			found, err := look()
			fmt.Println(found, err)
			os.Exit(0)
		}
	}
	os.Exit(shard.Main(m, 2, func() int { return privhost.Main(m, "/etc/cni", "/etc/allocnet") }))
}

// alone runs the test on a private host of its own, because what it changes cannot be undone
// in a network namespace. It reports whether this process is the one that runs it.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneVariable) == t.Name() {
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(realhost.Another(os.Environ()), aloneVariable+"="+t.Name())
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// rig is a private host with the network "web", which has the bridge web0.
type rig struct {
	*testing.T
	dir  string
	conf *configurator.Configurator
	// all has examine make all checks, and not only those that look at what tests change: features of
	// the kernel and the open files of all processes take most of the time.
	all bool
}

const subnet = "10.77.0.0/24"

func newRig(t *testing.T) *rig {
	t.Helper()
	privhost.Require(t, "nft", "iptables", "ip")
	r := &rig{T: t, dir: t.TempDir()}
	for name, mode := range map[string]os.FileMode{"state": 0o700, "conf": 0o755, "bin": 0o755} {
		require.NoError(t, os.Mkdir(r.path(name), mode))
	}
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	r.network("10-web", r.bridge("web", "web0", subnet))
	conf, err := configurator.New(configurator.Config{
		ConfDir: r.path("conf"), StateDir: r.path("state"), PluginDirs: []string{r.path("bin")}, OneShot: true,
		Retry: configurator.RetryPolicy{Delay: -1, Jitter: -1},
	})
	require.NoError(t, err)
	r.conf = conf
	t.Cleanup(func() {
		_, _ = conf.GC(context.Background(), nil)
		r.clean()
	})
	return r
}

// clean removes what a test has left.
func (r *rig) clean() {
	rules, err := nftables.New()
	require.NoError(r, err)
	rules.FlushRuleset()
	require.NoError(r, rules.Flush())
	if bridge, err := netlink.LinkByName("web0"); err == nil {
		require.NoError(r, netlink.LinkDel(bridge))
	}
	for _, pattern := range []string{"/etc/allocnet/*", sandbox.DefaultDir + "/*"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(r, err)
		for _, path := range paths {
			_ = unix.Unmount(path, 0) // it need not be a namespace
			require.NoError(r, os.RemoveAll(path))
		}
	}
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// sh runs a script and returns its output.
func (r *rig) sh(script string) string {
	r.Helper()
	out, err := exec.Command("sh", "-c", script).CombinedOutput()
	require.NoError(r, err, "%s: %s", script, out)
	return string(out)
}

// undo runs a script at the end of the test.
func (r *rig) undo(script string) { r.Cleanup(func() { r.sh(script) }) }

func (r *rig) network(file, text string) {
	r.Helper()
	require.NoError(r, os.WriteFile(r.path("conf/"+file+".conflist"), []byte(text), 0o600))
}

// bridge returns the configuration of a network.
func (r *rig) bridge(name, bridge, subnet string) string {
	return r.chain(name, bridge, subnet, `, {"type": "firewall"}, {"type": "portmap", "capabilities": {"portMappings": true}}`)
}

func (r *rig) chain(name, bridge, subnet, more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": true,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]]}}%s]}`, name, bridge, r.path("leases"), subnet, more)
}

// plugin writes a plugin that answers VERSION with a script.
func (r *rig) plugin(name, script string) {
	r.Helper()
	require.NoError(r, os.WriteFile(r.path("bin/"+name), []byte("#!/bin/sh\ncat >/dev/null\n"+script+"\n"), 0o755))
}

// setup sets up an allocation with a published port.
func (r *rig) setup(id string, change ...func(*configurator.Allocation)) configurator.Allocation {
	r.Helper()
	a := configurator.Allocation{ID: id, OwnNetns: true, Networks: []string{"web"}, Ports: []portmap.Port{{Label: "http", Value: 8080, To: 80}}}
	for _, f := range change {
		f(&a)
	}
	_, err := r.conf.Setup(r.Context(), a)
	require.NoError(r, err)
	return a
}

// listen listens at an address of an allocation until the end of the test.
func (r *rig) listen(id, address string) {
	r.Helper()
	s, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, id))
	require.NoError(r, err)
	defer s.Close()
	require.NoError(r, s.Do(func() error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			r.Cleanup(func() { _ = l.Close() })
		}
		return err
	}))
}

// connect connects from an allocation to an address.
func (r *rig) connect(id, address string) error {
	s, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, id))
	require.NoError(r, err)
	defer s.Close()
	return s.Do(func() error {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

func (r *rig) host() *Host {
	embedded, err := conflist.Embedded(conflist.EmbeddedOptions{StateDir: r.path("state")})
	require.NoError(r, err)
	h := &Host{
		Service: r.conf, Engine: configurator.EngineAuto, ConfDir: r.path("conf"), StateDir: r.path("state"),
		PluginDirs: []string{r.path("bin")}, NetnsDir: sandbox.DefaultDir, Settings: "/etc/allocnet/allocnetd.hcl",
	}
	h.Networks, h.Skipped = conflist.New(h.ConfDir, embedded).Resolving().Networks()
	return h
}

func (r *rig) examine() *Report {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	made := checks
	if !r.all {
		made = slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return c.name == "kernel" || c.name == "attempts" })
	}
	report := r.host().examine(ctx, made)
	// Other tests fill the tables of neighbours, which all network namespaces share.
	report.Findings = slices.DeleteFunc(report.Findings, func(f Finding) bool { return f.ID == "neighbour-full" })
	return report
}

// healthy requires that nothing is found.
func (r *rig) healthy() {
	r.Helper()
	require.Empty(r, describe(r.examine().Findings))
}

// finds requires a finding of a kind whose text contains all texts, and nothing else but
// findings of the other kinds.
func (r *rig) finds(id string, texts []string, others ...string) (found Finding) {
	r.Helper()
	report := r.examine()
	for _, f := range report.Findings {
		require.NotEmpty(r, f.Why)
		require.Empty(r, repeated(f.What, f.Why))
		require.NotEmpty(r, f.Repair)
		if f.ID != id {
			require.Contains(r, others, f.ID, describe(report.Findings))
			continue
		}
		missing := slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return strings.Contains(f.What+" "+f.Object, text) })
		if len(missing) == 0 {
			found = f
		}
	}
	require.NotEmpty(r, found.ID, "no finding %s with %q in:\n%s", id, texts, describe(report.Findings))
	return found
}

// repeated returns five words in a row that two texts have in common; "" if there are none.
func repeated(a, b string) string {
	const most = 5
	words := strings.Fields(b)
	for i := range len(words) - most + 1 {
		if run := strings.Join(words[i:i+most], " "); strings.Contains(a, run) {
			return run
		}
	}
	return ""
}

// repairs runs the repair that a finding names, and requires a healthy host.
func (r *rig) repairs(f Finding) {
	r.Helper()
	command, _, _ := strings.Cut(f.Repair, " (")
	r.sh(command)
	r.healthy()
}

// fixes has the safe repairs made, and requires that no finding of the kind is left. Without
// them, nothing has changed.
func (r *rig) fixes(id string) {
	r.Helper()
	before := r.examine()
	require.Equal(r, describe(before.Findings), describe(r.examine().Findings), "an examination changes nothing")
	before.Fix(r.Context())
	for _, f := range before.Findings {
		if f.ID == id {
			require.True(r, f.Safe)
			require.True(r, f.Fixed, f.FixError)
		}
	}
	r.healthy()
}

func describe(findings []Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s %s [%s]: %s\n  repair: %s\n", f.Severity, f.ID, f.Object, f.What, f.Repair)
	}
	return b.String()
}

// listen listens on port 8080. A child of an earlier test may have its socket until it runs its program.
func listen(t *testing.T) net.Listener {
	t.Helper()
	var l net.Listener
	require.Eventually(t, func() (listens bool) {
		var err error
		l, err = net.Listen("tcp4", "0.0.0.0:8080")
		return !errors.Is(err, unix.EADDRINUSE)
	}, 10*time.Second, time.Millisecond)
	require.NotNil(t, l)
	return l
}
