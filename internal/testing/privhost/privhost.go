// Package privhost gives a program a host of its own: a copy of the program runs in new mount and network
// namespaces (and, for an ordinary user, in a new user namespace in which it is root), with empty directories in
// place of the host's run-time state. Links, rules, mounts and leases that the copy makes, and everything that it
// starts, are invisible to the real host and vanish with the last process.
//
// Test binaries enter through [Main] and guard each kernel test with [Require]; other programs call [Enter].
//
// # Caveats
//
// Only the network, the mounts and the covered directories are private. Other files are those of the real host,
// and so are processes: there is no new PID namespace. An ordinary user's private host knows one user, root;
// files cannot be given to another.
package privhost

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// marker names the environment variable that tells a process where it runs. In the copy it first holds
	// the identity of the namespaces that were left, then that of the private mount namespace.
	marker       = "ALLOCNET_PRIVATE_HOST"
	markedLeft   = "left "
	markedInside = "inside "

	// reportFD is where the copy says why it could not be set up: the first of exec.Cmd.ExtraFiles.
	reportFD = 3
)

// Options says what a private host has beside its namespaces. The zero value is ready for use.
type Options struct {
	// Dirs are absolute paths of further directories that start out empty and private. /run and
	// /var/lib/cni always do. They need not exist: then they are made, without touching the real host.
	Dirs []string
}

// Enter runs run inside a private host and returns its exit status, with which the caller should exit at once.
//
// The calling process starts a copy of itself with the same arguments and standard streams, passes signals on to
// it and waits; the copy reaches this same call, and there run is called. So whatever precedes the call happens
// twice. A process that is already inside just calls run. A status of 128+n means that signal n ended the copy.
//
// An error means that no private host can be had, for example because user namespaces are forbidden; run was
// not called and the process is where it was.
//
// Enter must not be called concurrently.
func Enter(opts Options, run func() int) (int, error) {
	if Inside() {
		return run(), nil
	}
	if left, ok := strings.CutPrefix(os.Getenv(marker), markedLeft); ok {
		return settle(opts, left, run), nil
	}
	return spawn()
}

// Inside reports whether the process runs inside a private host.
func Inside() bool {
	id, ok := strings.CutPrefix(os.Getenv(marker), markedInside)
	if !ok {
		return false
	}
	// The variable alone proves nothing: it could have been exported by hand.
	mounts, err := namespace("mnt")
	return err == nil && mounts == id
}

// Another returns an environment with which a program enters a private host of its own, though it is started inside
// one.
func Another(environ []string) []string { return append(slices.Clip(environ), marker+"=") }

// spawn starts the copy and waits for it.
func spawn() (int, error) {
	left, err := identity()
	if err != nil {
		return 0, err
	}
	report, reportEnd, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("open report pipe: %w", err)
	}
	defer report.Close()
	cmd := command(reportEnd, markedLeft+left)

	// The parent death signal is bound to the thread that started the copy, so that thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	relay := newSignalRelay()
	defer relay.stop()
	err = cmd.Start()
	reportEnd.Close()
	if err != nil {
		return 0, fmt.Errorf("start private host: %w", err)
	}
	relay.start(cmd.Process)

	reason, readErr := io.ReadAll(report)
	waitErr := cmd.Wait()
	switch {
	case len(reason) > 0:
		return 0, fmt.Errorf("set up private host: %s", reason)
	case readErr != nil:
		return 0, fmt.Errorf("read report of private host: %w", readErr)
	case cmd.ProcessState == nil:
		return 0, fmt.Errorf("wait for private host: %w", waitErr)
	}
	return exitStatus(cmd.ProcessState), nil
}

// command describes the copy.
func command(report *os.File, mark string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), marker+"="+mark)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{report}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid := os.Geteuid(); uid != 0 {
		// The network namespace is made once the user is mapped: of an earlier one the
		// real root owns ip_tables_names and its like, and the copy could not read them.
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWUSER
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNET
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

// exitStatus is what a shell would make of state.
func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// settle makes the copy's new namespaces a host and calls run in it. A failure is the original's to return.
func settle(opts Options, left string, run func() int) int {
	report := os.NewFile(reportFD, "report")
	unix.CloseOnExec(reportFD)
	err := checkLeft(left)
	if err == nil {
		err = setUp(opts)
	}
	if err != nil {
		fmt.Fprint(report, err)
	}
	report.Close()
	if err != nil {
		return 1
	}
	return run()
}

// checkLeft guards the real host against a stray marker: set-up would cover its directories.
func checkLeft(left string) error {
	now, err := identity()
	if err != nil {
		return err
	}
	oldMounts, oldNet, _ := strings.Cut(left, " ")
	mounts, net, _ := strings.Cut(now, " ")
	if mounts == oldMounts || net == oldNet {
		return fmt.Errorf("check namespaces: still those of the host: %s", now)
	}
	return nil
}

// identity names the mount and the network namespace of the process.
func identity() (string, error) {
	mounts, err := namespace("mnt")
	if err != nil {
		return "", err
	}
	net, err := namespace("net")
	return mounts + " " + net, err
}

// namespace names the process's namespace of one kind, such as "net:[4026531840]".
func namespace(kind string) (string, error) {
	id, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return "", fmt.Errorf("read %s namespace: %w", kind, err)
	}
	return id, nil
}
