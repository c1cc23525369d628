package rtnl

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// privileges are the capabilities that are needed to change the host's network and to
// enter another network namespace.
var privileges = []struct {
	name string
	bit  uint32
}{
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN},
}

// MissingPrivileges returns the capabilities (capabilities(7)) that the calling thread
// lacks for attaching network namespaces. It makes one system call.
func MissingPrivileges() ([]string, error) {
	var data [2]unix.CapUserData // version 3 fills two structures
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return nil, fmt.Errorf("read own capabilities: %w", err)
	}
	var missing []string
	for _, p := range privileges {
		if data[0].Effective&(1<<p.bit) == 0 {
			missing = append(missing, p.name)
		}
	}
	return missing, nil
}

// OwnsHost reports whether the capabilities of the process apply to its network
// namespace. They do not if a user namespace outside that of the process owns it.
func OwnsHost() (bool, error) {
	const file = "/proc/thread-self/ns/net"
	host, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open own network namespace %s: %w", file, err)
	}
	defer unix.Close(host)
	owner, err := unix.IoctlRetInt(host, unix.NS_GET_USERNS)
	if err == unix.EPERM { // the owner is outside the process's user namespace
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the owner of the own network namespace: %w", err)
	}
	return true, unix.Close(owner)
}
