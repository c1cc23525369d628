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
// group that it leads. The caller and its ancestors are spared. The error is
// ErrAlive where some are still there at the end.
func KillStragglers(w Work, commands ...string) error {
	spared := ancestry()
	var found []string
	for range mostKills {
		var err error
		// One that was just forking left a child that was not there yet.
		if found, err = killOnce(w, commands, spared); len(found) == 0 || err != nil {
			return err
		}
	}
	return fmt.Errorf("kill plugins of allocation %q: %w: %s; find out what holds it (its state and stack in /proc), then try again",
		w.ID, ErrAlive, strings.Join(found, ", "))
}

// ErrAlive: a process of a plugin is still there although it was killed.
var ErrAlive = errors.New("process does not end")

const (
	// mostKills bounds how often processes are looked for and killed.
	mostKills = 20
	// deathMilliseconds is how long a killed process is waited for each time.
	deathMilliseconds = 50
)

// killOnce returns the processes that it found and killed.
func killOnce(w Work, commands []string, spared map[int]bool) (found []string, err error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, proc := range procs {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil || spared[pid] || !w.On(pid, commands...) {
			continue
		}
		found = append(found, describe(pid))
		errs = append(errs, killIfWorkingOn(pid, w, commands))
	}
	return found, errors.Join(errs...)
}

// describe is a process for a person to find.
func describe(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return strconv.Itoa(pid)
	}
	return fmt.Sprintf("%d (%s)", pid, bytes.TrimSpace(name))
}

// killIfWorkingOn looks at the environment once more through a pidfd, so that a
// reused number cannot hit a stranger.
func killIfWorkingOn(pid int, w Work, commands []string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d of allocation %q: %w", pid, w.ID, err)
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
