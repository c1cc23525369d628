package privhost_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/privhost"
	testhost "github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// helperVariable is an environment variable that makes the test binary run one
// of helpers instead of the tests.
const helperVariable = "PRIVHOST_TEST_HELPER"

// testDirs are covered for the tests: a missing directory whose parent has many
// files, and a directory that only the helpers use.
var testDirs = []string{"/etc/cni/net.d", "/srv"}

func TestMain(m *testing.M) {
	if helper, ok := helpers[os.Getenv(helperVariable)]; ok {
		os.Exit(helper())
	}
	os.Exit(testhost.Main(m, testDirs...))
}

// covered are the directories that helpers cover: one exists, two do not.
var covered = []string{"/run/existing", "/srv/a/b", "/srv/c"}

// helpers are the programs that copies of the test binary run. The tests run on a
// private host, which such a copy takes for the real host. So the tests see what
// leaks out of a private host, and cannot change the machine.
var helpers = map[string]func() int{
	"exit":      entered(privhost.Options{}, func() int { return 42 }),
	"kill":      entered(privhost.Options{}, killSelf),
	"await":     entered(privhost.Options{}, awaitSignal),
	"again":     entered(privhost.Options{}, enterAgain),
	"path":      entered(privhost.Options{}, printPath),
	"bus":       entered(privhost.Options{}, printBus),
	"change":    entered(privhost.Options{Dirs: covered}, changeHost),
	"no root":   entered(privhost.Options{Dirs: []string{"/allocnet-missing"}}, runNothing),
	"relative":  entered(privhost.Options{Dirs: []string{"missing"}}, runNothing),
	"powerless": powerless(entered(privhost.Options{}, runNothing)),
}

// entered returns a program that calls run inside a private host. The program
// exits with 99 if Enter fails.
func entered(opts privhost.Options, run func() int) func() int {
	return func() int {
		status, err := privhost.Enter(opts, run)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 99
		}
		return status
	}
}

// powerless returns a program that runs program without capabilities.
func powerless(program func() int) func() int {
	return func() (status int) {
		testhost.Unprivileged(exitOnFailure{}, func() { status = program() })
		return status
	}
}

// exitOnFailure is a testhost.TB that exits with 98 on a failure.
type exitOnFailure struct{}

func (exitOnFailure) Helper()              {}
func (exitOnFailure) Skipf(string, ...any) {}
func (exitOnFailure) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(98)
}

func runNothing() int {
	fmt.Println("ran")
	return 0
}

func printBus() int {
	fmt.Println(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"))
	return 0
}

func printPath() int {
	fmt.Println(os.Getenv("PATH"))
	return 0
}

func killSelf() int {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// awaitSignal prints the first signal that it receives.
func awaitSignal() int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("waiting")
	fmt.Println(<-signals)
	return 3
}

func enterAgain() int {
	before := os.Getpid()
	return entered(privhost.Options{}, func() int {
		fmt.Println("same process:", os.Getpid() == before)
		return 0
	})()
}

// changeHost changes its host in ways that must not be visible outside, and prints
// the state that it then finds.
func changeHost() int {
	if err := makeChanges(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, err := os.Stat("/sys/class/net/new0")
	fmt.Println("sysfs shows own links:", err == nil)
	fmt.Println("user:", os.Geteuid())
	_, err = os.ReadFile("/proc/thread-self/net/ip_tables_names")
	fmt.Println("names of iptables tables can be read:", err == nil || errors.Is(err, fs.ErrNotExist))
	for _, dir := range []string{"/run/existing", "/srv", "/srv/dir/mounted"} {
		fmt.Printf("%s: %s\n", dir, names(dir))
	}
	return 0
}

func makeChanges() error {
	for _, path := range []string{"/run/new", "/var/lib/cni/new", "/srv/a/b/new", "/srv/c/new"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
	}
	// This fails if a directory that Enter created is itself a mount point.
	if err := os.Rename("/srv/a", "/srv/b"); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/var/lib/cni", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "new0"}, PeerName: "new1"})
}

// names returns the names of the entries of a directory.
func names(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err.Error()
	}
	var list []string
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return strings.Join(list, " ")
}

// helperCommand returns the command of a helper. It takes the private host of the
// tests for the real host.
func helperCommand(name string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	// The source directory belongs to the machine, so the helper does not use it.
	cmd.Dir = "/run"
	cmd.Env = append(os.Environ(), privhost.Marker+"=", skip.RequireVariable+"=", helperVariable+"="+name)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// runHelper runs cmd and returns its output and exit status.
func runHelper(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}
