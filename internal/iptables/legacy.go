package iptables

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacySnapshot is the shape of the tables filter and mangle of the legacy iptables:
// their hooks, their number of rules, and their size in bytes. Every flush and every
// added or removed rule changes it; the replacement of a rule by another one of the
// same size does not.
type legacySnapshot struct {
	family Family
	shapes [2]shape
}

// shape is struct ipt_getinfo, the same for both families.
type shape struct {
	name           [32]byte
	hooks          uint32
	entry, under   [5]uint32
	entries, bytes uint32
}

// getInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
const getInfo = 64

// legacySnapshotOf returns the shape of a family's tables; nil if it cannot be read. In
// that case iptables, which runs next, reports the reason.
func legacySnapshotOf(f Family) snapshot {
	now, err := readShapes(f)
	if err != nil {
		return nil
	}
	return legacySnapshot{family: f, shapes: now}
}

func (s legacySnapshot) shows(*state) bool { return true }

func (s legacySnapshot) unchanged() bool {
	now, err := readShapes(s.family)
	return err == nil && now == s.shapes
}

func readShapes(f Family) (shapes [2]shape, err error) {
	fd, err := unix.Socket(int(f), unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return shapes, err
	}
	defer unix.Close(fd)
	for i, name := range []string{filterTable, mangleTable} {
		if shapes[i], err = readShape(fd, f, name); err != nil {
			return shapes, err
		}
	}
	return shapes, nil
}

func readShape(fd int, f Family, table string) (shape, error) {
	level := unix.SOL_IP
	if f == IPv6 {
		level = unix.SOL_IPV6
	}
	var s shape
	copy(s.name[:], table)
	size := uint32(unsafe.Sizeof(s))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), getInfo,
		uintptr(unsafe.Pointer(&s)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return shape{}, errno
	}
	return s, nil
}
