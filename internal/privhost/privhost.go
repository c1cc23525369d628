// Package privhost runs a program on a private host. It starts a copy of the
// program in new mount and network namespaces, and for an ordinary user also in
// a new user namespace in which that user is root. Empty directories cover the
// run-time state of the real host. Links, rules, mounts and leases that the copy
// and its children create are invisible to the real host and vanish with the
// last of these processes.
//
// Programs call [Enter]. Test binaries use internal/testing/privhost.
//
// # Caveats
//
// Only the network, the mounts and the covered directories are private. All
// other files belong to the real host, and so do processes: there is no new PID
// namespace. The private host of an ordinary user has one user, root, so files
// cannot be given to another user.
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
	// marker is the environment variable that says where a process runs. In the
	// copy it first holds the identity of the original's namespaces, then that of
	// the private mount namespace.
	marker       = "ALLOCNET_PRIVATE_HOST"
	markedLeft   = "left "
	markedInside = "inside "

	// reportFD is the file descriptor to which the copy writes why its set-up
	// failed. It is the first of exec.Cmd.ExtraFiles.
	reportFD = 3
)

// Options are the options of a private host. The zero value is ready for use.
type Options struct {
	// Dirs are absolute paths of directories that start out empty and private, in
	// addition to /run and /var/lib/cni. A directory that does not exist is
	// created without touching the real host.
	Dirs []string
}

// Enter calls run inside a private host and returns its exit status. The caller
// should exit with that status at once.
//
// The calling process starts a copy of itself with the same arguments and
// standard streams, forwards signals to it and waits for it. The copy calls run
// when it reaches the same call of Enter, so the code before that call runs
// twice. A process that is already inside a private host only calls run. A
// status of 128+n means that signal n ended the copy.
//
// An error means that the private host could not be created, for example because
// user namespaces are disabled. In that case run was not called, and the process
// is still on its original host.
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
	// The variable alone proves nothing: a user may have exported it.
	mounts, err := namespace("mnt")
	return err == nil && mounts == id
}

// Another returns environ changed so that a program started with it enters a new
// private host, even if it is started inside one.
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

	// The kernel sends the parent death signal when the thread that started the
	// copy ends, so this goroutine keeps its thread.
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

// command returns the command that starts the copy.
func command(report *os.File, where string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), marker+"="+where)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{report}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid := os.Geteuid(); uid != 0 {
		// The child creates the network namespace after the user is mapped. In a
		// network namespace created earlier, files such as ip_tables_names belong
		// to the real root, and the copy could not read them.
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWUSER
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNET
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

// exitStatus returns the exit status that a shell would report for state.
func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// settle turns the copy's new namespaces into a private host and calls run. It
// reports a failure to the original process, whose Enter returns it.
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

// checkLeft returns an error if the process still runs in the namespaces of the
// real host. It guards against a stray marker: setUp would cover directories of
// the real host.
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

// identity returns the names of the mount and network namespaces of the process.
func identity() (string, error) {
	mounts, err := namespace("mnt")
	if err != nil {
		return "", err
	}
	net, err := namespace("net")
	return mounts + " " + net, err
}

// namespace returns the name of the process's namespace of one kind, such as
// "net:[4026531840]".
func namespace(kind string) (string, error) {
	id, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return "", fmt.Errorf("read %s namespace: %w", kind, err)
	}
	return id, nil
}
