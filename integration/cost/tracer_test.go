package cost

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// count is what a process asked of the kernel between two marks.
type count struct {
	calls        int // system calls
	messages     int // to netlink sockets
	transactions int // of nf_tables
	files        int // opened for writing, outside of /proc
	byNumber     map[uint64]int
}

// least returns the minimum of each number of several counts of one operation: the Go runtime, work in the
// background, caches that expire and waits on a busy machine add to some of them.
func least(list []*count) *count {
	minimum := func(of func(c *count) int) int {
		lowest := of(list[0])
		for _, c := range list {
			lowest = min(lowest, of(c))
		}
		return lowest
	}
	u := &count{byNumber: map[uint64]int{}}
	for _, c := range list {
		for nr := range c.byNumber {
			u.byNumber[nr] = minimum(func(c *count) int { return c.byNumber[nr] })
		}
	}
	for _, n := range u.byNumber {
		u.calls += n
	}
	u.messages = minimum(func(c *count) int { return c.messages })
	u.transactions = minimum(func(c *count) int { return c.transactions })
	u.files = minimum(func(c *count) int { return c.files })
	return u
}

// marks is the beginning of the paths to which a traced process asks for access, to name what follows. After
// it comes the name, or nothing at its end.
const marks = "allocnet-cost:"

// mark tells the tracer what the process does from now on; "" is nothing that counts.
func mark(name string) { _ = unix.Access(marks+name, unix.F_OK) } // there is no such file

// uncounted are system calls of the Go runtime, which depend on its scheduler, and that which reads notifications,
// of which several may come at once.
var uncounted = map[uint64]bool{
	unix.SYS_FUTEX: true, unix.SYS_EPOLL_PWAIT: true, unix.SYS_NANOSLEEP: true, unix.SYS_CLOCK_NANOSLEEP: true,
	unix.SYS_SCHED_YIELD: true, unix.SYS_MADVISE: true, unix.SYS_MMAP: true, unix.SYS_MUNMAP: true, unix.SYS_MPROTECT: true,
	unix.SYS_RT_SIGACTION: true, unix.SYS_RT_SIGPROCMASK: true, unix.SYS_RT_SIGRETURN: true, unix.SYS_SIGALTSTACK: true,
	unix.SYS_TGKILL: true, unix.SYS_GETPID: true, unix.SYS_GETTID: true, unix.SYS_CLONE: true, unix.SYS_CLONE3: true,
	unix.SYS_RESTART_SYSCALL: true, unix.SYS_EXIT: true, unix.SYS_PRCTL: true, unix.SYS_SET_ROBUST_LIST: true, unix.SYS_RSEQ: true,
	unix.SYS_RECVFROM: true,
}

// tracer runs a process and counts what all its threads ask of the kernel (ptrace(2)).
type tracer struct {
	pid      int
	pidfd    int
	name     string // of the last mark
	now      *count
	last     map[int][]byte      // the last requests to each socket
	again    map[int]bool        // the last requests to the socket repeat others
	opens    map[int]bool        // threads that open a setting
	settings map[int]bool        // descriptors of settings
	counted  map[string][]*count // by the name of the mark
	threads  map[int]bool
}

// trace runs a program of the same machine to its end, and returns the counts between its marks.
func trace(cmd *exec.Cmd) (map[string][]*count, error) {
	runtime.LockOSThread() // the tracer of a process is a thread
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &tracer{pid: cmd.Process.Pid, counted: map[string][]*count{}, opens: map[int]bool{}, threads: map[int]bool{cmd.Process.Pid: true}}
	err := t.run()
	if err != nil {
		_ = cmd.Process.Kill()
	}
	return t.counted, errors.Join(err, cmd.Process.Release())
}

func (t *tracer) run() error {
	var status unix.WaitStatus
	if _, err := unix.Wait4(t.pid, &status, unix.WALL, nil); err != nil {
		return fmt.Errorf("wait for the program: %w", err)
	}
	var err error
	if t.pidfd, err = unix.PidfdOpen(t.pid, 0); err != nil {
		return fmt.Errorf("open the process: %w", err)
	}
	defer unix.Close(t.pidfd)
	if err := unix.PtraceSetOptions(t.pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return fmt.Errorf("trace the process: %w", err)
	}
	for tid := t.pid; ; {
		signal := t.stopped(tid, status)
		if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
			return fmt.Errorf("continue thread %d: %w", tid, err)
		}
		for {
			if tid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil); err == unix.EINTR {
				continue
			} else if err != nil {
				return fmt.Errorf("wait for a thread: %w", err)
			}
			if status.Stopped() {
				break
			}
			if tid == t.pid {
				if status.Signaled() || status.ExitStatus() != 0 {
					return fmt.Errorf("the program ended with status %#x", int(status))
				}
				return nil
			}
		}
	}
}

// stopped handles the stop of a thread, and returns the signal with which it continues.
func (t *tracer) stopped(tid int, status unix.WaitStatus) (signal int) {
	isNew := !t.threads[tid]
	t.threads[tid] = true
	switch s := status.StopSignal(); {
	case s == unix.SIGTRAP|0x80:
		switch s, ok := inquire(tid); {
		case ok && s.ends:
			t.ended(tid, s.result)
		case ok:
			t.call(tid, s.nr, s.args)
		}
	case s == unix.SIGTRAP, s == unix.SIGSTOP && isNew:
	default:
		return int(s)
	}
	return 0
}

// syscallStop describes that a thread begins or has ended a system call.
type syscallStop struct {
	ends   bool
	nr     uint64 // of the call, if it begins
	result int64  // of the call, if it ends
	args   [6]uint64
}

// inquire returns why a thread stopped at a system call.
func inquire(tid int) (s syscallStop, ok bool) {
	const getSyscallInfo, entry, exit = 0x420e, 1, 2 // PTRACE_GET_SYSCALL_INFO and its values of op
	var info struct {
		op     uint8
		arch   uint32
		ip, sp uint64
		nr     uint64 // the result at the end
		args   [6]uint64
		_      [16]byte
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	return syscallStop{ends: info.op == exit, nr: info.nr, result: int64(info.nr), args: info.args}, errno == 0 && (info.op == entry || info.op == exit)
}

// call counts a system call.
func (t *tracer) call(tid int, nr uint64, args [6]uint64) {
	if nr == unix.SYS_FACCESSAT {
		if name, ok := strings.CutPrefix(t.text(args[1]), marks); ok {
			t.begin(name)
			return
		}
	}
	if t.now == nil || uncounted[nr] {
		return
	}
	fd := int(int32(args[0]))
	switch nr {
	case unix.SYS_READ, unix.SYS_RECVMSG:
		if t.again[fd] || t.settings[fd] || t.link(fd) == eventfd {
			return
		}
	case unix.SYS_WRITE, unix.SYS_SENDTO, unix.SYS_SENDMSG:
		link := t.link(fd)
		if link == eventfd || strings.HasPrefix(link, "socket:") && !t.sent(fd, t.data(nr, args)) {
			return
		}
	case unix.SYS_CLOSE:
		was := t.settings[fd]
		delete(t.last, fd)
		delete(t.again, fd)
		delete(t.settings, fd)
		if was {
			return
		}
	case unix.SYS_OPENAT:
		if strings.HasPrefix(t.text(args[1]), "/proc/sys/") {
			t.opens[tid] = true
			return
		}
		if args[2]&(unix.O_WRONLY|unix.O_RDWR|unix.O_CREAT) != 0 && !strings.HasPrefix(t.text(args[1]), "/proc/") {
			t.now.files++
		}
	}
	t.now.calls++
	t.now.byNumber[nr]++
}

const eventfd = "anon_inode:[eventfd]" // with which the runtime wakes its poller

// link returns what a descriptor of the process leads to.
func (t *tracer) link(fd int) string {
	link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.pid, fd)) // a closed one leads to nothing
	return link
}

// begin ends what was counted so far.
func (t *tracer) begin(name string) {
	if t.now != nil {
		t.counted[t.name] = append(t.counted[t.name], t.now)
	}
	if t.name, t.now = name, nil; name != "" {
		t.now, t.last, t.again = &count{byNumber: map[uint64]int{}}, map[int][]byte{}, map[int]bool{}
		t.settings = map[int]bool{}
	}
}

// ended notes the descriptor of a setting of the kernel that a thread has opened. How often these are opened and read
// is not counted, as what was read is valid for a time; what is written to them is.
func (t *tracer) ended(tid int, result int64) {
	if t.opens[tid] && result >= 0 && t.settings != nil {
		t.settings[int(result)] = true
	}
	delete(t.opens, tid)
}

// sent counts the netlink messages in what is sent to a socket. It returns false if they repeat the ones
// before: that is a wait for a worker of the kernel, which takes as many as it takes.
func (t *tracer) sent(fd int, data []byte) bool {
	protocol := t.netlink(fd)
	if protocol < 0 {
		return true
	}
	var kinds []uint16
	for rest := data; len(rest) >= unix.SizeofNlMsghdr; {
		size := int(binary.NativeEndian.Uint32(rest))
		kinds = append(kinds, binary.NativeEndian.Uint16(rest[4:]))
		clear(rest[8:12]) // the sequence number
		rest = rest[min(max((size+3)&^3, unix.SizeofNlMsghdr), len(rest)):]
	}
	t.again[fd], t.last[fd] = bytes.Equal(t.last[fd], data), data
	if t.again[fd] {
		return false
	}
	t.now.messages += len(kinds)
	if protocol == unix.NETLINK_NETFILTER && slices.Contains(kinds, unix.NFNL_MSG_BATCH_BEGIN) {
		t.now.transactions++
	}
	return true
}

// netlink returns the protocol of a netlink socket of the process, or -1 if it is another one.
func (t *tracer) netlink(fd int) int {
	socket, err := unix.PidfdGetfd(t.pidfd, fd, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(socket)
	if domain, _ := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN); domain != unix.AF_NETLINK {
		return -1
	}
	protocol, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return -1
	}
	return protocol
}

// data returns what a system call sends.
func (t *tracer) data(nr uint64, args [6]uint64) []byte {
	if nr != unix.SYS_SENDMSG {
		return t.read(args[1], int(args[2]))
	}
	header := t.read(args[1], 56) // struct msghdr
	if len(header) < 56 {
		return nil
	}
	var all []byte
	iov := t.read(binary.NativeEndian.Uint64(header[16:]), 16*int(binary.NativeEndian.Uint64(header[24:])))
	for ; len(iov) >= 16; iov = iov[16:] {
		all = append(all, t.read(binary.NativeEndian.Uint64(iov), int(binary.NativeEndian.Uint64(iov[8:])))...)
	}
	return all
}

// text reads a path of the process. It may lie at the end of what is mapped.
func (t *tracer) text(at uint64) string {
	const page = 1 << 12
	data := t.read(at, int(page-at%page))
	if !bytes.Contains(data, []byte{0}) {
		data = append(data, t.read(at+uint64(len(data)), page)...)
	}
	text, _, _ := bytes.Cut(data, []byte{0})
	return string(text)
}

// read reads memory of the process.
func (t *tracer) read(at uint64, size int) []byte {
	data := make([]byte, size)
	if size == 0 {
		return nil
	}
	n, err := unix.ProcessVMReadv(t.pid, []unix.Iovec{{Base: &data[0], Len: uint64(size)}},
		[]unix.RemoteIovec{{Base: uintptr(at), Len: size}}, 0)
	if err != nil {
		return nil
	}
	return data[:n]
}
