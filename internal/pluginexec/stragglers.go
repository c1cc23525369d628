package pluginexec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Work is what a plugin's process works on, as its environment tells: the
// container, and the last entry of CNI_PATH, the caller's mark.
type Work struct{ ID, Mark string }

// KillStragglers kills every process that still does the work on one of the
// commands, or on any if none is named: plugins of an operation whose
// deadline passed, or that outlived the process that started them, with all that
// they started. They are known by the environment that CNI prescribes and every
// child inherits, and by the mark at the end of its CNI_PATH: another runtime, or
// a plugin that calls us, may work on the same ID. With a plugin goes the process
// group that it leads. The caller and its ancestors are spared.
func KillStragglers(w Work, commands ...string) error {
	spared := ancestry()
	for try := 1; ; try++ {
		found, err := killOnce(w, commands, spared)
		// One that was just forking left a child that was not there yet.
		if !found || err != nil || try == 20 {
			return err
		}
	}
}

// deathMilliseconds is how long a killed process is waited for.
const deathMilliseconds = 100

func killOnce(w Work, commands []string, spared map[int]bool) (found bool, err error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return false, err
	}
	var errs []error
	for _, proc := range procs {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil || spared[pid] || !w.On(pid, commands...) {
			continue
		}
		found = true
		errs = append(errs, killIfWorkingOn(pid, w, commands))
	}
	return found, errors.Join(errs...)
}

// killIfWorkingOn looks at the environment once more through a pidfd, so that a
// reused number cannot hit a stranger.
func killIfWorkingOn(pid int, w Work, commands []string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // gone
	}
	defer unix.Close(fd)
	if !w.On(pid, commands...) {
		return nil
	}
	if pgid, err := unix.Getpgid(pid); err == nil && pgid == pid && pgid != unix.Getpgrp() {
		killGroup(fd, pgid)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d of allocation %q: %w", pid, w.ID, err)
	}
	// The descriptor is readable once the process has ended, see pidfd_open(2).
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, deathMilliseconds)
	return nil
}

// killGroup kills the group that a plugin leads, also those in it that have another
// environment by now. The group is that of the descriptor, as far as the kernel can
// tell (since Linux 6.9); while its leader is not dead, no other has its number.
func killGroup(leader, pgid int) {
	if unix.PidfdSendSignal(leader, unix.SIGKILL, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP) == unix.EINVAL {
		_ = unix.Kill(-pgid, unix.SIGKILL)
	}
}

// On reports whether a process does the work on one of the commands, or on any if
// none is named. A dead one has no environment.
func (w Work) On(pid int, commands ...string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false // gone, or not ours
	}
	env := map[string]string{}
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		key, value, _ := strings.Cut(string(kv), "=")
		env[key] = value
	}
	dirs := filepath.SplitList(env["CNI_PATH"])
	return env["CNI_CONTAINERID"] == w.ID && slices.Contains(dirs, w.Mark) &&
		(len(commands) == 0 || slices.Contains(commands, env["CNI_COMMAND"]))
}

// ancestry are the caller's process and all above it.
func ancestry() map[int]bool {
	pids := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !pids[pid]; pid = parent(pid) {
		pids[pid] = true
	}
	return pids
}

// parent reads the fourth field of /proc/PID/stat, see proc_pid_stat(5); the
// second one, in parentheses, may hold anything.
func parent(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}
