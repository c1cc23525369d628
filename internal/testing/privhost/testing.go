package privhost

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// RequireVariable is the environment variable that, set to "1", makes a run fail in which kernel tests could not
// run. Without it they are skipped.
const RequireVariable = "ALLOCNET_REQUIRE_KERNEL"

// errNoMain is why Require cannot let a test run when Main was not called.
var errNoMain = errors.New("TestMain does not call privhost.Main")

// outside is why the tests do not run inside a private host.
var outside = errNoMain

// Main runs a test binary's tests inside a private host and returns the status to exit with. Use it so:
//
//	func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }
//
// dirs are further directories that start out empty, as in [Options]. Where there can be no private host, the
// reason goes to standard error, and the tests run where they are, those with [Require] being skipped; or, if
// [RequireVariable] says so, none runs and the status is 1.
func Main(m interface{ Run() int }, dirs ...string) int {
	status, err := Enter(Options{Dirs: dirs}, m.Run)
	if err == nil {
		return status
	}
	outside = err
	if required() {
		fmt.Fprintf(os.Stderr, "%s=1, but there is no private host: %v\n", RequireVariable, err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "kernel tests are skipped: %v\n", err)
	return m.Run()
}

// TB is the part of testing.TB that Require needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Require lets a test run on only inside a private host, and where the named programs are installed. Elsewhere it
// skips the test with the reason, or fails it if [RequireVariable] says so or if [Main] was not called at all.
func Require(t TB, programs ...string) {
	t.Helper()
	if !Inside() {
		refuse(t, errors.Is(outside, errNoMain), fmt.Sprintf("no private host: %v", outside))
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			refuse(t, false, fmt.Sprintf("%s is not installed", program))
		}
	}
}

// RequireRoot is Require for a test of what only root outside of user namespaces may
// do.
func RequireRoot(t TB, programs ...string) {
	t.Helper()
	Require(t, programs...)
	if !hostsRoot() {
		refuse(t, false, "the kernel lets only root of the host do this")
	}
}

// hostsRoot reports whether root is root outside as well: it alone has a user
// namespace in which there are others.
func hostsRoot() bool {
	users, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(users))
	return err == nil && len(fields) == 3 && fields[2] != "1"
}

// Unprivileged runs fn on a thread of its own without capabilities, which what it starts does not get either. It
// fails the test if they cannot be dropped. fn runs in another goroutine than the test, so it must not end the test.
func Unprivileged(t TB, fn func()) {
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

// refuse ends a test that cannot run here.
func refuse(t TB, fault bool, reason string) {
	t.Helper()
	if fault || required() {
		t.Fatalf("%s", reason)
		return
	}
	t.Skipf("%s", reason)
}

func required() bool {
	return os.Getenv(RequireVariable) == "1"
}
