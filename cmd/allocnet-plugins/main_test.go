package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	privatehost "github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/programs"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/internal/testing/shard"
	"github.com/allocnet/allocnet/sandbox"
)

// ownPlugin is a plugin of allocnet that has no reference plugin.
const ownPlugin = "routes"

// The plugin directories: the reference plugins, and links to this program or to its
// shim. built has the programs, and work is for the files of the tests.
var (
	reference string
	links     string
	built     string
	work      string
	// running is the daemon while the links lead to the shim.
	running *daemon
)

func TestMain(m *testing.M) {
	os.Exit(shard.Main(m, 3, func() int { return privhost.Main(builder{m}) }))
}

// builder prepares the programs before the tests run. It runs all tests twice: with links
// to this program, and with links to its shim while allocnetd is running; with -short only the latter.
type builder struct{ *testing.M }

func (b builder) Run() (code int) {
	var err error
	if work, err = os.MkdirTemp("", "allocnet-plugins-"); err == nil {
		defer os.RemoveAll(work)
		reference, err = refplugins.Dir()
	}
	if err == nil {
		built, err = programs.Dir()
	}
	flag.Parse()
	for _, program := range []string{sdk.Program, sdk.Shim} {
		if testing.Short() && program == sdk.Program {
			continue
		}
		if err == nil {
			fmt.Println("as", program)
			links, err = linksTo(program)
		}
		if err == nil && program == sdk.Shim && privatehost.Inside() {
			running, err = startDaemon()
		}
		if err != nil {
			break
		}
		code = max(code, b.M.Run())
		if running != nil {
			err = running.stop()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// linksTo returns a new directory with a link for each plugin.
func linksTo(program string) (string, error) {
	dir, err := os.MkdirTemp(work, "cni-")
	if err != nil {
		return "", err
	}
	for _, name := range append(slices.Collect(maps.Keys(builtin.DropIns)), "odd") {
		if err := os.Symlink(filepath.Join(built, program), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// daemon is a running allocnetd.
type daemon struct {
	*exec.Cmd
	log bytes.Buffer
}

// startDaemon starts allocnetd at its default socket, and waits until it is ready.
func startDaemon() (*daemon, error) {
	dir := filepath.Join(work, "daemon")
	settings, socket := filepath.Join(dir, "allocnetd.hcl"), filepath.Join(dir, "notify")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.RemoveAll(socket)); err != nil {
		return nil, err
	}
	if err := os.WriteFile(settings, fmt.Appendf(nil, "conf_dir = %q\nlog { level = \"debug\" }\n", dir), 0o600); err != nil {
		return nil, err
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: socket})
	if err != nil {
		return nil, err
	}
	defer notify.Close()
	d := &daemon{Cmd: exec.Command(filepath.Join(built, "allocnetd"), "--config", settings)}
	d.Env, d.Stdout, d.Stderr = append(os.Environ(), "NOTIFY_SOCKET="+socket), &d.log, &d.log
	if err := d.Start(); err != nil {
		return nil, err
	}
	text := make([]byte, 4096)
	for n := 0; err == nil && !strings.HasPrefix(string(text[:n]), "READY=1"); {
		err = notify.SetReadDeadline(time.Now().Add(time.Minute))
		if err == nil {
			n, err = notify.Read(text)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("allocnetd is not ready: %w: %w: %s", err, d.stop(), &d.log)
	}
	return d, nil
}

func (d *daemon) stop() error {
	return errors.Join(d.Process.Signal(syscall.SIGTERM), d.Wait())
}

// answer is the output and exit status of a process.
type answer struct {
	exit           int
	stdout, stderr string
}

// call runs a plugin of a directory with only the given variables.
func call(t testing.TB, dir, plugin, stdin string, env ...string) answer {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.Command(filepath.Join(dir, plugin))
	c.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewBufferString(stdin), &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return answer{exit: c.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// failure returns the error that a plugin wrote to stdout, and the number of
// JSON objects there.
func (a answer) failure(t testing.TB) (e types.Error, objects int) {
	t.Helper()
	require.Equal(t, 1, a.exit, "%+v", a)
	require.Empty(t, a.stderr)
	d := json.NewDecoder(strings.NewReader(a.stdout))
	for ; d.More(); objects++ {
		e = types.Error{}
		require.NoError(t, d.Decode(&e), a.stdout)
	}
	return e, objects
}

// namespace creates a network namespace and returns its path.
func namespace(t testing.TB, name string) string {
	t.Helper()
	s, err := sandbox.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return s.Path()
}

// addresses returns the addresses inside a sandbox.
func addresses(t testing.TB, s *sandbox.Sandbox) (list []netip.Addr) {
	t.Helper()
	require.NoError(t, s.Do(func() error {
		found, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		for _, f := range found {
			address, _ := netip.AddrFromSlice(f.IP)
			list = append(list, address.Unmap())
		}
		return err
	}))
	return list
}
