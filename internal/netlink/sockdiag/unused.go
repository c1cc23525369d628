package sockdiag

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/exhausted"
)

// probeMark marks the sockets of Unused, so that a Look at the same time does not take
// them for listeners (SO_MARK, socket(7)).
const probeMark = 0x70726f62

// Unused reports whether nothing listens on the ports, in the network namespace of the
// calling thread. It binds each port for some microseconds. That is quicker than Look for a
// few ports: the kernel walks all of its tables of listening sockets for Look. If a port
// cannot be bound, Unused returns false. Then call Look for the sockets that listen. If no
// descriptor or memory is left for a socket, the error is allocnet.ErrLimit.
//
// A program that binds one of the ports in that moment gets EADDRINUSE. Unused does not find
// sockets that are bound to a VRF.
func Unused(wanted ...Ports) (bool, error) {
	for _, w := range wanted {
		for _, port := range w.Numbers {
			if err := bindBriefly(w.Protocol, int(port)); err != nil {
				if exhausted.Is(err) {
					return false, exhausted.Limit(err)
				}
				return false, nil
			}
		}
	}
	return true, nil
}

// bindBriefly returns nil if a port can be bound on all addresses of both families.
func bindBriefly(protocol uint8, port int) error {
	err := tryBind(unix.AF_INET6, protocol, &unix.SockaddrInet6{Port: port})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) { // without IPv6
		err = tryBind(unix.AF_INET, protocol, &unix.SockaddrInet4{Port: port})
	}
	return err
}

func tryBind(family int, protocol uint8, address unix.Sockaddr) error {
	kind := unix.SOCK_DGRAM
	if protocol == unix.IPPROTO_TCP {
		kind = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, probeMark)
	if err == nil && family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err == nil && protocol == unix.IPPROTO_TCP { // connections that were accepted on the port are no matter
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	return err
}
