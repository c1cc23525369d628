// Package privhost runs the tests of a test binary on a private host: see the
// package internal/privhost. A test binary enters it through [Main] and guards
// each kernel test with [Require].
package privhost

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// errNoMain is the reason for which Require refuses a test if Main was not called.
var errNoMain = errors.New("TestMain does not call privhost.Main")

// outside is the reason why the tests do not run inside a private host.
var outside = errNoMain

// Main runs the tests of a test binary inside a private host and returns the exit
// status. Call it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }
//
// dirs are directories that start out empty: see [privhost.Options]. If the
// private host cannot be created, Main writes the reason to standard error. Then
// it runs the tests on the real host, where tests with [Require] are skipped. If
// [skip.RequireVariable] is "1", it runs no test and returns 1 instead.
func Main(m interface{ Run() int }, dirs ...string) int {
	// With the race detector, processes that tests start would sleep for a second before they exit.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	status, err := privhost.Enter(privhost.Options{Dirs: dirs}, func() int {
		reportNoGroups()
		return m.Run()
	})
	if err == nil {
		return status
	}
	outside = err
	if skip.Required() {
		fmt.Fprintf(os.Stderr, "%s=1, but there is no private host: %v\n", skip.RequireVariable, err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "kernel tests are skipped: %v\n", err)
	return m.Run()
}

// reportsPath is a setting of a network namespace: whether it reports multicast groups of the link.
const reportsPath = "/proc/sys/net/ipv4/igmp_link_local_mcast_reports"

// reportNoGroups keeps new bridges from reporting their multicast group. Each report would be tracked as a
// connection for ten minutes, and with any connection every teardown walks the table of the whole machine, which
// takes most of the CPU time of many tests. The tests also pass without, so an error does not matter.
func reportNoGroups() { _ = os.WriteFile(reportsPath, []byte("0"), 0) }

// Require skips a test, with the reason, unless it runs inside a private host and
// the named programs are installed. It fails the test instead if
// [skip.RequireVariable] is "1" or if [Main] was not called.
func Require(t skip.TB, programs ...string) {
	t.Helper()
	if !privhost.Inside() {
		if errors.Is(outside, errNoMain) {
			t.Fatalf("no private host: %v", outside)
			return
		}
		skip.Unless(t, false, "no private host: %v", outside)
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			skip.Unless(t, false, "%s is not installed", program)
		}
	}
}

// RequireRoot is Require for a test that needs root in the initial user namespace.
func RequireRoot(t skip.TB, programs ...string) {
	t.Helper()
	Require(t, programs...)
	skip.Unless(t, IsHostRoot(), "the test needs root in the initial user namespace")
}

// IsHostRoot reports whether the process is root of the real host too. Only that
// root has a user namespace with more than one user.
func IsHostRoot() bool {
	users, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(users))
	return err == nil && len(fields) == 3 && fields[2] != "1"
}

// Unprivileged calls fn on a separate thread without capabilities. It fails the
// test if the capabilities cannot be dropped. fn runs in another goroutine than
// the test, so it must not call t.FailNow.
func Unprivileged(t skip.TB, fn func()) {
	t.Helper()
	dropped := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var none [2]unix.CapUserData
		err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
		dropped <- err
		if err == nil {
			fn()
		}
	}()
	<-done
	if err := <-dropped; err != nil {
		t.Fatalf("drop capabilities: %v", err)
	}
}
