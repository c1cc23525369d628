package privhost

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// helperVariable makes the test binary run one of helpers, and none of the tests.
const helperVariable = "PRIVHOST_TEST_HELPER"

// testDirs are covered for the tests: one that is missing below a directory full of files, and one that only the
// helpers work in.
var testDirs = []string{"/etc/cni/net.d", "/srv"}

func TestMain(m *testing.M) {
	if helper, ok := helpers[os.Getenv(helperVariable)]; ok {
		os.Exit(helper())
	}
	os.Exit(Main(m, testDirs...))
}

// covered are directories that helpers cover: one that exists and two that are missing.
var covered = []string{"/run/existing", "/srv/a/b", "/srv/c"}

// helpers are what copies of the test binary do. The tests run inside a private host, which is the real host of
// such a copy: so they see what leaks out of a private host, and cannot harm the machine.
var helpers = map[string]func() int{
	"exit":        entered(Options{}, func() int { return 42 }),
	"kill":        entered(Options{}, killSelf),
	"await":       entered(Options{}, awaitSignal),
	"again":       entered(Options{}, enterAgain),
	"path":        entered(Options{}, tellPath),
	"bus":         entered(Options{}, tellBus),
	"change":      entered(Options{Dirs: covered}, changeHost),
	"no root":     entered(Options{Dirs: []string{"/allocnet-missing"}}, runNothing),
	"relative":    entered(Options{Dirs: []string{"missing"}}, runNothing),
	"powerless":   powerless(entered(Options{}, runNothing)),
	"main":        func() int { return Main(fakeTests{}) },
	"main denied": powerless(func() int { return Main(fakeTests{}) }),
}

// entered is a program that enters a private host. It exits with 99 when it cannot.
func entered(opts Options, run func() int) func() int {
	return func() int {
		status, err := Enter(opts, run)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 99
		}
		return status
	}
}

// powerless runs program without the right to make namespaces.
func powerless(program func() int) func() int {
	return func() int {
		runtime.LockOSThread()
		var none [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capset(&header, &none[0]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 98
		}
		return program()
	}
}

func runNothing() int {
	fmt.Println("ran")
	return 0
}

func tellBus() int {
	fmt.Println(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"))
	return 0
}

func tellPath() int {
	fmt.Println(os.Getenv("PATH"))
	return 0
}

// fakeTests stands in for testing.M.
type fakeTests struct{}

func (fakeTests) Run() int {
	fmt.Println("ran, inside:", Inside())
	return 5
}

func killSelf() int {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// awaitSignal tells the first signal that comes.
func awaitSignal() int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("waiting")
	fmt.Println(<-signals)
	return 3
}

func enterAgain() int {
	before := os.Getpid()
	return entered(Options{}, func() int {
		fmt.Println("same process:", os.Getpid() == before)
		return 0
	})()
}

// changeHost does to its host what must not be seen outside, and tells what it finds.
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
	// Impossible where a directory that was made is itself a mount.
	if err := os.Rename("/srv/a", "/srv/b"); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/var/lib/cni", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "new0"}, PeerName: "new1"})
}

// names lists a directory.
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

// helperCommand prepares a copy of the test binary that takes the private host of the tests for the real one.
func helperCommand(name string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	// Not the directory of the sources: it belongs to the machine.
	cmd.Dir = "/run"
	cmd.Env = append(os.Environ(), marker+"=", RequireVariable+"=", helperVariable+"="+name)
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
