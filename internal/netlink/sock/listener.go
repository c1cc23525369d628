package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listener receives notifications of the kernel. Unlike a Socket it waits, and is
// registered with Go's poller. It must be used by one goroutine, except for Close.
type Listener struct {
	protocol int
	file     *os.File
	conn     syscall.RawConn
	buffer   []byte
}

// ErrLost: notifications were lost, because they came faster than they were read.
var ErrLost = errors.New("notifications were lost")

// ListenOptions are the options of Listen.
type ListenOptions struct {
	Protocol int
	Groups   []int // multicast groups
	// Buffer is the size of the receive buffer in bytes. Without CAP_NET_ADMIN it is
	// limited by the sysctl net.core.rmem_max.
	Buffer int
	// DrainOnly is for a Listener that never waits: its notifications do not wake Go's
	// poller.
	DrainOnly bool
	// Filter drops notifications in the kernel; nil keeps all.
	Filter []unix.SockFilter
	// Own lets notifications of this process's own changes arrive. The kernel drops them
	// otherwise.
	Own bool
}

// Listen subscribes to groups of notifications in the network namespace of the calling
// thread.
func Listen(o ListenOptions) (*Listener, error) {
	kind := unix.SOCK_RAW | unix.SOCK_CLOEXEC
	if !o.DrainOnly {
		kind |= unix.SOCK_NONBLOCK
	}
	fd, err := unix.Socket(unix.AF_NETLINK, kind, o.Protocol)
	if err != nil {
		return nil, fmt.Errorf("listen to %s: %w", protocolNames[o.Protocol], err)
	}
	if err := subscribe(fd, &o); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to %s: %w", protocolNames[o.Protocol], err), unix.Close(fd))
	}
	l := &Listener{protocol: o.Protocol, file: os.NewFile(uintptr(fd), protocolNames[o.Protocol]), buffer: make([]byte, maxNotification)}
	if l.conn, err = l.file.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to %s: %w", protocolNames[o.Protocol], err), l.file.Close())
	}
	return l, nil
}

// maxNotification is more than the kernel puts into one notification.
const maxNotification = 64 << 10

func subscribe(fd int, o *ListenOptions) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, o.Buffer); err != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, o.Buffer); err != nil {
			return err
		}
	}
	var filter []unix.SockFilter
	if !o.Own {
		filter = foreign()
	}
	if filter = append(filter, o.Filter...); len(o.Filter) == 0 {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: ^uint32(0)})
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return err
	}
	if err := bind(fd); err != nil { // before that, no notification is received
		return err
	}
	for _, group := range o.Groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			return err
		}
	}
	return nil
}

// Notification is one message. Its payload is valid only during the call.
type Notification struct {
	Kind    uint16
	Flags   uint16
	Payload []byte
}

// Wait waits until there is a notification, and then passes all that there are to
// each. The error is ErrLost if some were lost, and os.ErrClosed after Close.
func (l *Listener) Wait(each func(*Notification)) error { return l.read(true, each) }

// Drain is like Wait, but does not wait.
func (l *Listener) Drain(each func(*Notification)) error { return l.read(false, each) }

func (l *Listener) read(wait bool, each func(*Notification)) error {
	lost := false
	for {
		var n int
		var errno error
		err := l.conn.Read(func(fd uintptr) (done bool) {
			n, _, errno = unix.Recvfrom(int(fd), l.buffer, unix.MSG_DONTWAIT)
			return errno != unix.EAGAIN || !wait
		})
		switch {
		case err != nil: // no deadline is set, so it is closed
			return os.ErrClosed
		case errno == unix.EAGAIN && lost:
			return ErrLost
		case errno == unix.EAGAIN:
			return nil
		case errno == unix.EINTR:
			continue
		case errno == unix.ENOBUFS:
			lost = true
		case errno != nil:
			return fmt.Errorf("read notifications of %s: %w", protocolNames[l.protocol], errno)
		default:
			notifications(l.buffer[:n], each)
		}
		wait = false
	}
}

func notifications(data []byte, each func(*Notification)) {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return
		}
		each(&Notification{Kind: binary.NativeEndian.Uint16(data[4:]), Flags: binary.NativeEndian.Uint16(data[6:]), Payload: data[unix.SizeofNlMsghdr:length]})
		data = data[min(len(data), Align(length)):]
	}
}

// Close ends a call of Wait. It may be called at any time, and again.
func (l *Listener) Close() error {
	if err := l.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
