package sockdiag

import (
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

// Processes finds the processes that have sockets open, by the inodes of the sockets.
// It reads the links of all open files of every process for which it has permission,
// and is too slow for code in which time matters.
func Processes(inodes ...uint32) map[uint32]Process {
	wanted := map[string]uint32{}
	for _, inode := range inodes {
		if inode != 0 {
			wanted["socket:["+strconv.FormatUint(uint64(inode), 10)+"]"] = inode
		}
	}
	found := map[uint32]Process{}
	entries, _ := os.ReadDir("/proc") // if it cannot be read, no process is found
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if len(found) == len(wanted) {
			break
		}
		dir := filepath.Join("/proc", e.Name())
		files, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, f := range files {
			target, err := os.Readlink(filepath.Join(dir, "fd", f.Name()))
			inode, is := wanted[target]
			if err != nil || !is {
				continue
			}
			if _, known := found[inode]; !known {
				name, _ := os.ReadFile(filepath.Join(dir, "comm"))
				found[inode] = Process{pid, strings.TrimSpace(string(name))}
			}
		}
	}
	return found
}
