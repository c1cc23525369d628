package faultinject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// reportVariable contains the descriptor to which a process under test
	// writes the number of its listener.
	reportVariable = "ALLOCNET_FAULTINJECT_REPORT"
	// commandVariable makes the test binary execute the program in its
	// arguments.
	commandVariable = "ALLOCNET_FAULTINJECT_COMMAND"
	// reportFD is the number to which the report descriptor is moved. The
	// filter allows writes to it. No program under test opens that many files.
	reportFD = 999
)

// Main executes the program under test if the test binary was started by
// [Command].
func Main() {
	if os.Getenv(commandVariable) == "" {
		return
	}
	err := os.Unsetenv(commandVariable)
	if err == nil {
		err = Enter()
	}
	if err == nil {
		err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "run under fault injection:", err)
	os.Exit(1)
}

// Enter turns the calling process into the process under test: its later calls
// are points. [Start] must have started it.
func Enter() error {
	fd, err := strconv.Atoi(os.Getenv(reportVariable))
	if err != nil {
		return fmt.Errorf("read %s: %w", reportVariable, err)
	}
	if err := os.Unsetenv(reportVariable); err != nil {
		return err
	}
	if err := unix.Dup3(fd, reportFD, unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("move report descriptor: %w", err)
	}
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close report descriptor: %w", err)
	}
	return install()
}

// install installs the filter on all threads and reports the listener. The test
// process duplicates the listener. The original stays open, because the calls
// fail when no listener is left.
func install() error {
	program := filter()
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH|
			unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return fmt.Errorf("install seccomp filter: %w", errno)
	}
	report := binary.NativeEndian.AppendUint32(nil, uint32(listener))
	if n, err := unix.Write(reportFD, report); n != len(report) {
		return fmt.Errorf("report seccomp listener: %w", errors.Join(err, unix.Close(reportFD)))
	}
	return nil
}

// Offsets in struct seccomp_data.
const (
	numberOffset   = 0
	firstArgOffset = 16
)

// argument returns the offset of the lower half of an argument.
func argument(i uint32) uint32 { return firstArgOffset + 8*i }

// socketRequests is the common prefix of all ioctl(2) requests to sockets.
const socketRequests = 0x8900

const (
	allow  = unix.SECCOMP_RET_ALLOW
	notify = unix.SECCOMP_RET_USER_NOTIF
)

// filter returns the seccomp program. It passes on the calls of the table,
// except opening a file for reading, an ioctl on anything but a socket, and
// writes to the standard streams.
func filter() []unix.SockFilter {
	const changing = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC
	p := []unix.SockFilter{load(numberOffset)}
	for number := range calls {
		switch number {
		case unix.SYS_OPENAT:
			p = append(p, only(number, load(argument(2)), jump(unix.BPF_JSET, changing, 1, 0), answer(allow), answer(notify))...)
		case unix.SYS_IOCTL:
			p = append(p, only(number, load(argument(1)), mask(0xff00), jump(unix.BPF_JEQ, socketRequests, 0, 1), answer(notify), answer(allow))...)
		case unix.SYS_WRITE:
			p = append(p, only(number, load(argument(0)), jump(unix.BPF_JEQ, reportFD, 1, 0),
				jump(unix.BPF_JGT, 2, 1, 0), answer(allow), answer(notify))...)
		default:
			p = append(p, only(number, answer(notify))...)
		}
	}
	return append(p, answer(allow))
}

// only returns instructions that run for one system call.
func only(number int, then ...unix.SockFilter) []unix.SockFilter {
	return append([]unix.SockFilter{jump(unix.BPF_JEQ, uint32(number), 0, uint8(len(then)))}, then...)
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func mask(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: k}
}

func jump(kind uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | kind | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func answer(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
}
