// Package pidns runs the tests of a test binary on a private host with process IDs and control groups of its own, so that no
// process of the containers that they start survives them.
package pidns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// nestedVariable tells a copy of the test binary what it is: the first process of the PID namespace, or the tests.
const nestedVariable = "ALLOCNET_TEST_PIDNS"

// Main is privhost.Main in a new PID namespace, and in a new control group of each hierarchy that is mounted. Main removes
// the groups at the end. Without root, it is privhost.Main alone.
func Main(m interface{ Run() int }, dirs ...string) int {
	switch nested := os.Getenv(nestedVariable); {
	case nested == "init":
		return initProcess()
	case nested == "" && os.Geteuid() == 0 && privhost.IsHostRoot():
		status, err := outside()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return status
	}
	return privhost.Main(m, dirs...)
}

// outside runs the tests and returns their exit status.
func outside() (status int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	groups, err := newGroups()
	defer func() {
		for _, group := range groups {
			err = errors.Join(err, removeGroup(group))
		}
	}()
	if err != nil {
		return 0, err
	}
	c := exec.Command("unshare", append([]string{
		"--mount", "--pid", "--cgroup", "--propagation", "private", "--mount-proc", "--fork", "--kill-child", self,
	}, os.Args[1:]...)...)
	if len(groups) > 0 { // a process enters them, and becomes the command
		enter := `for group; do test "$group" = -- && break; echo $$ >"$group/cgroup.procs"; shift; done; shift; exec "$@"`
		c = exec.Command("sh", slices.Concat([]string{"-ec", enter, "sh"}, groups, []string{"--"}, c.Args)...)
	}
	c.Env = append(os.Environ(), nestedVariable+"=init")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err = c.Run(); c.ProcessState == nil {
		return 0, err
	}
	return c.ProcessState.ExitCode(), nil
}

// initProcess is the first process of the PID namespace. It waits for orphaned processes until the tests end.
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

// newGroups returns a new control group of each hierarchy: of version 2, and of the controllers of version 1.
func newGroups() (groups []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if kind := fields[2]; kind != "cgroup" && kind != "cgroup2" {
			continue
		}
		group, err := os.MkdirTemp(fields[1], "allocnet-tests-")
		if err != nil {
			return groups, err
		}
		groups = append(groups, group)
		if err := admit(group); err != nil {
			return groups, err
		}
	}
	return groups, nil
}

// admit gives a new group of the controller cpuset the CPUs and the memory of its parent, without which no process may enter.
func admit(group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(group), file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(group, file), value, 0)
		}
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removeGroup removes a control group and those below it once their processes have ended.
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

// EndOthers kills all processes except those of the tests, such as the containers that a killed containerd has left, and
// waits until they have ended.
func EndOthers(t testing.TB) {
	t.Helper()
	keep := []string{"1", strconv.Itoa(os.Getppid()), strconv.Itoa(os.Getpid())}
	require.Eventually(t, func() bool {
		paths, err := filepath.Glob("/proc/[0-9]*")
		require.NoError(t, err)
		for _, path := range paths {
			if pid := filepath.Base(path); !slices.Contains(keep, pid) {
				n, _ := strconv.Atoi(pid)
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
		return len(paths) == len(keep)
	}, time.Minute, 5*time.Millisecond, "all other processes end")
}

// UnmountBelow unmounts what is mounted in a directory, the last mount first, with exceptions.
func UnmountBelow(t testing.TB, dir string, except ...string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	lines := slices.Collect(strings.Lines(string(mounts)))
	slices.Reverse(lines)
	for _, line := range lines {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") && !slices.Contains(except, at) {
			require.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
		}
	}
}
