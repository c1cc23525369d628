package main

import (
	"runtime"
	"syscall"
	"unsafe"
)

// memfd makes a file in memory. Package syscall is too old to know how, and
// golang.org/x/sys/unix takes longer to start than to use.
func memfd() (int, error) {
	name := []byte("config\x00")
	const closeOnExec = 1
	fd, _, errno := syscall.Syscall(memfdCreate(), uintptr(unsafe.Pointer(&name[0])), closeOnExec, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// memfdCreate is the number of the system call; one that does not exist where it is
// not known.
func memfdCreate() uintptr {
	switch runtime.GOARCH {
	case "amd64":
		return 319
	case "arm64", "riscv64", "loong64":
		return 279
	case "386":
		return 356
	case "arm":
		return 385
	case "ppc64", "ppc64le":
		return 360
	case "s390x":
		return 350
	}
	return ^uintptr(0)
}
