package cniexec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killStragglers kills every process that still works on an ADD, CHECK or DEL
// of the allocation: plugins of an operation whose deadline passed, or that
// outlived the process that started them. They are known by the environment
// that CNI prescribes and every child inherits, and by the network namespace:
// another host, in a namespace of its own, may use the same ID. The caller and
// its ancestors are spared: it may be a CNI plugin itself.
func killStragglers(id string) error {
	spared := ancestry()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var errs []error
	for _, proc := range procs {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil || spared[pid] {
			continue
		}
		errs = append(errs, killIfWorkingOn(pid, id))
	}
	return errors.Join(errs...)
}

// killIfWorkingOn looks at the environment through a pidfd that was opened
// before, so that a reused number cannot hit a stranger.
func killIfWorkingOn(pid int, id string) error {
	if !worksOn(pid, id) {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // gone
	}
	defer unix.Close(fd)
	if !worksOn(pid, id) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d of allocation %q: %w", pid, id, err)
	}
	return nil
}

func worksOn(pid int, id string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !sameHost(pid) {
		return false // gone, or not ours
	}
	var ours, plugin bool
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		ours = ours || string(kv) == "CNI_CONTAINERID="+id
		plugin = plugin || bytes.HasPrefix(kv, []byte("CNI_COMMAND="))
	}
	return ours && plugin
}

// sameHost says whether a process runs in the network namespace of the caller's
// process, which is the host's.
func sameHost(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && its == own
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
