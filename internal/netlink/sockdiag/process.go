package sockdiag

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is a process that has a socket open.
type Process struct {
	PID  int
	Name string // as in /proc/PID/comm
}

// Processes finds the processes that have sockets open, by the inodes of the sockets. Of several it returns the
// one that began first: others have inherited the socket, if only until they run a program.
// It reads the links of all open files of every process for which it has permission,
// and is too slow for code in which time matters.
func Processes(inodes ...uint32) map[uint32]Process { return processes("/proc", inodes) }

func processes(proc string, inodes []uint32) map[uint32]Process {
	wanted := map[string]uint32{}
	for _, inode := range inodes {
		if inode != 0 {
			wanted["socket:["+strconv.FormatUint(uint64(inode), 10)+"]"] = inode
		}
	}
	found, began := map[uint32]Process{}, map[uint32]uint64{}
	if len(wanted) == 0 {
		return found
	}
	entries, _ := os.ReadDir(proc) // if it cannot be read, no process is found
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		files, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, f := range files {
			target, err := os.Readlink(filepath.Join(dir, "fd", f.Name()))
			inode, is := wanted[target]
			if err != nil || !is {
				continue
			}
			start := startOf(dir)
			if other, known := found[inode]; !known || start < began[inode] || start == began[inode] && pid < other.PID {
				name, _ := os.ReadFile(filepath.Join(dir, "comm"))
				found[inode], began[inode] = Process{pid, strings.TrimSpace(string(name))}, start
			}
		}
	}
	return found
}

// startOf returns the time since boot at which a process began, in ticks (proc_pid_stat(5), field 22).
func startOf(dir string) uint64 {
	const after = 19 // fields behind the name, which may contain spaces
	text, _ := os.ReadFile(filepath.Join(dir, "stat"))
	_, fields, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	if list := strings.Fields(fields); len(list) > after {
		if start, err := strconv.ParseUint(list[after], 10, 64); err == nil {
			return start
		}
	}
	return math.MaxUint64 // it has ended
}
