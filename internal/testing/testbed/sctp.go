package testbed

import (
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Package net does not support SCTP, but treats its one-to-one sockets like TCP
// sockets.

const sctpProtocol = unix.IPPROTO_SCTP

// HasSCTP reports whether the kernel supports SCTP sockets.
func HasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, sctpProtocol)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

func listenSCTP(port int) (net.Listener, error) {
	f, err := sctpSocket(unix.AF_INET6)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Bind(int(f.Fd()), &unix.SockaddrInet6{Port: port}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(int(f.Fd()), 8); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f)
}

func dialSCTP(ctx context.Context, _, addr string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	family, sockaddr := unix.AF_INET, unix.Sockaddr(nil)
	if to.Addr().Is4() {
		sockaddr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	f, err := sctpSocket(family)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := connect(ctx, int(f.Fd()), sockaddr); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(f)
}

// connect connects a socket before a context ends. It is not interrupted by the signals with which package runtime
// preempts goroutines, after which a connect that waits does not go on.
func connect(ctx context.Context, fd int, to unix.Sockaddr) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	err := unix.Connect(fd, to)
	if err != unix.EINPROGRESS {
		return err
	}
	deadline, _ := ctx.Deadline()
	for {
		wait := int(time.Until(deadline).Milliseconds())
		if wait <= 0 {
			return context.DeadlineExceeded
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, wait)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n == 0 {
			continue
		}
		failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || failed == 0 {
			return err
		}
		return unix.Errno(failed)
	}
}

func sctpSocket(family int) (*os.File, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, sctpProtocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return os.NewFile(uintptr(fd), "sctp"), nil
}
