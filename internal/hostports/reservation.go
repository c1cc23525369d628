package hostports

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
)

// Reservations are the sockets with which container runtimes reserve the host ports of
// running containers: the IDs of the containers by the inodes of the sockets.
//
// Podman binds the published ports of a container and leaves the sockets to conmon, which
// monitors it. No one reads from them. A process counts as such only if it is called
// conmon and names a container in its arguments, and if root made the socket: other users
// could start any program in that form.
type Reservations map[uint32]string

// FindReservations looks among listeners for reservations. It reads /proc only if there is
// a listener of root.
func FindReservations(found []sockdiag.Listener) Reservations {
	sockets := map[string]uint32{}
	for _, l := range found {
		if l.UID == 0 && l.Inode != 0 {
			sockets["socket:["+strconv.FormatUint(uint64(l.Inode), 10)+"]"] = l.Inode
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	reservations := Reservations{}
	processes, _ := os.ReadDir("/proc") // without it, no listener is a reservation
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", p.Name())
		container := monitored(dir)
		if container == "" {
			continue
		}
		files, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, f := range files {
			target, err := os.Readlink(filepath.Join(dir, "fd", f.Name()))
			if inode, is := sockets[target]; err == nil && is {
				reservations[inode] = container
			}
		}
	}
	return reservations
}

// monitored returns the ID of the container that the process with a directory in /proc
// monitors, or "" if it is not conmon.
func monitored(dir string) string {
	name, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil || strings.TrimSpace(string(name)) != "conmon" {
		return ""
	}
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // empty if the process has ended
	return containerOf(strings.Split(string(line), "\x00"))
}

// containerOf returns the value of conmon's option -c, --cid. Later arguments that look
// like it are values of other options.
func containerOf(args []string) string {
	for i, arg := range args {
		if id, is := strings.CutPrefix(arg, "--cid="); is {
			return id
		}
		if (arg == "-c" || arg == "--cid") && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// Others returns the listeners that are not reservations for a container.
func (r Reservations) Others(found []sockdiag.Listener, container string) []sockdiag.Listener {
	if len(r) == 0 {
		return found
	}
	return slices.DeleteFunc(slices.Clone(found), func(l sockdiag.Listener) bool { return container != "" && r[l.Inode] == container })
}

// Others returns the listeners that are not reservations of a runtime for a container.
func Others(found []sockdiag.Listener, container string) []sockdiag.Listener {
	return FindReservations(found).Others(found, container)
}
