package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/sandbox"
)

// The plugin directories: the reference plugins, and links to this program.
var (
	reference string
	links     string
)

func TestMain(m *testing.M) {
	fakeplugin.Main()
	os.Exit(privhost.Main(builder{m}))
}

// builder builds the program before the tests run.
type builder struct{ *testing.M }

func (b builder) Run() int {
	dir, err := os.MkdirTemp("", "allocnet-plugins-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return b.M.Run()
}

func build(dir string) (err error) {
	if reference, err = refplugins.Dir(); err != nil {
		return err
	}
	links = filepath.Join(dir, "cni")
	if err := os.Mkdir(links, 0o755); err != nil {
		return err
	}
	program := filepath.Join(dir, "allocnet-plugins")
	c := exec.Command("go", "build", "-o", program, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w: %s", err, out)
	}
	for name := range builtin.Plugins {
		if err := os.Symlink(program, filepath.Join(links, name)); err != nil {
			return err
		}
	}
	return os.Symlink(program, filepath.Join(links, "odd"))
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
