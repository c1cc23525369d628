package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// nestedVariable is set in the process that runs the tests.
const nestedVariable = "ALLOCNET_TEST_CONTAINERD"

func TestMain(m *testing.M) {
	switch nested := os.Getenv(nestedVariable); {
	case nested == "init":
		os.Exit(initProcess())
	case nested == "" && os.Geteuid() == 0 && privhost.IsHostRoot(): // other users cannot run the tests
		os.Exit(outside())
	}
	code := privhost.Main(m, "/etc/cni/net.d")
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}

// outside runs the tests in their own PID namespace, so that no container survives
// them, and below their own cgroup, which it removes at the end.
func outside() int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	group, err := newGroup()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := exec.Command("sh", append([]string{"-ec", `echo $$ >"$0/cgroup.procs"
exec unshare --mount --pid --cgroup --propagation private --mount-proc --fork --kill-child "$@"`, group, self}, os.Args[1:]...)...)
	c.Env = append(os.Environ(), nestedVariable+"=init")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = c.Run()
	if err := removeGroup(group); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if c.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return c.ProcessState.ExitCode()
}

// initProcess is the first process of the PID namespace. It waits for orphaned
// processes until the tests end.
func initProcess() int {
	_ = os.Setenv(nestedVariable, "tests")
	tests, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &status, 0, nil); {
		case err != nil && !errors.Is(err, unix.EINTR):
			fmt.Fprintln(os.Stderr, "wait:", err)
			return 1
		case pid == tests.Pid && status.Signaled():
			return 128 + int(status.Signal())
		case pid == tests.Pid:
			return status.ExitStatus()
		}
	}
}

// newGroup returns a new cgroup of version 2.
func newGroup() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[2] == "cgroup2" {
			return os.MkdirTemp(fields[1], "allocnet-containerd-")
		}
	}
	return "", errors.New("cgroup2 is not mounted")
}

// removeGroup removes a cgroup and those below it once their processes have ended.
func removeGroup(group string) error {
	var dirs []string
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs)
	deadline := time.Now().Add(30 * time.Second)
	for _, dir := range dirs {
		for err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist); err = os.Remove(dir) {
			if time.Now().After(deadline) {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}
