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

// Work identifies, by their environment, the processes that work on a
// container: by its ID and by Tag, the process tag, which is the last entry of
// CNI_PATH. IfNames are the interfaces on which they work; nil stands for all. Another
// allocation may have other interfaces of the same container.
type Work struct {
	ID, Tag string
	IfNames []string
}

// KillOrphans kills all processes of the work with one of the commands, or with
// any if none is given: plugins whose deadline has passed or whose parent has
// died, with their children. It finds them by the CNI environment, which every
// child inherits. The process tag in CNI_PATH distinguishes them from those of
// another runtime, or of a plugin that calls allocnet, with the same ID. It
// also kills the process groups that plugins lead, but not the caller or its
// ancestors. The error is ErrAlive if a process remains.
func KillOrphans(w Work, commands ...string) error {
	spared := ancestry()
	var found []string
	for range mostKills {
		var err error
		// A process that was forking may have left a new child.
		if found, err = killOnce(w, commands, spared); len(found) == 0 || err != nil {
			return err
		}
	}
	return fmt.Errorf("kill plugins of allocation %q: %w: %s; find out what holds it (its state and stack in /proc), then try again",
		w.ID, ErrAlive, strings.Join(found, ", "))
}

// ErrAlive: a process of a plugin still exists although it was killed.
var ErrAlive = errors.New("process does not end")

const (
	// mostKills limits the number of passes over all processes.
	mostKills = 20
	// deathMilliseconds is how long each pass waits for a killed process.
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

// describe describes a process for an error message.
func describe(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return strconv.Itoa(pid)
	}
	return fmt.Sprintf("%d (%s)", pid, bytes.TrimSpace(name))
}

// killIfWorkingOn checks the environment once more through a pidfd, so that a
// reused PID cannot kill another process.
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

// killGroup kills the process group of a plugin, including processes whose
// environment has changed. Since Linux 6.9 the kernel finds the group by the
// pidfd. No other group can have its number before the leader is dead.
func killGroup(leader, pgid int) {
	if unix.PidfdSendSignal(leader, unix.SIGKILL, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP) == unix.EINVAL {
		_ = unix.Kill(-pgid, unix.SIGKILL)
	}
}

// On reports whether a process belongs to the work, with one of the commands or
// with any if none is given. A dead process has no environment.
func (w Work) On(pid int, commands ...string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false // ended, or of another user
	}
	env := map[string]string{}
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		key, value, _ := strings.Cut(string(kv), "=")
		env[key] = value
	}
	dirs := filepath.SplitList(env["CNI_PATH"])
	return env["CNI_CONTAINERID"] == w.ID && slices.Contains(dirs, w.Tag) &&
		(w.IfNames == nil || slices.Contains(w.IfNames, env["CNI_IFNAME"])) &&
		(len(commands) == 0 || slices.Contains(commands, env["CNI_COMMAND"]))
}

// ancestry returns the PIDs of the caller and its ancestors.
func ancestry() map[int]bool {
	pids := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !pids[pid]; pid = parent(pid) {
		pids[pid] = true
	}
	return pids
}

// parent returns the PPID, the fourth field of /proc/PID/stat; see proc_pid_stat(5).
// The second field, in parentheses, may contain any characters.
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
