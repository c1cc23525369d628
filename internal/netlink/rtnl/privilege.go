package rtnl

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// privileges are what changes to the host's network and a look into another
// network namespace need.
var privileges = []struct {
	name string
	bit  uint32
}{
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN},
}

// MissingPrivileges are the capabilities (capabilities(7)) that the calling thread
// lacks for attaching network namespaces. It is one system call.
func MissingPrivileges() ([]string, error) {
	var data [2]unix.CapUserData // the header's version has two
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

// OwnsHost reports whether the capabilities of the process count in its network
// namespace: they do not where that belongs to a user namespace further out.
func OwnsHost() (bool, error) {
	const file = "/proc/thread-self/ns/net"
	host, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open own network namespace %s: %w", file, err)
	}
	defer unix.Close(host)
	owner, err := unix.IoctlRetInt(host, unix.NS_GET_USERNS)
	if err == unix.EPERM { // what is further out is not shown
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the owner of the own network namespace: %w", err)
	}
	return true, unix.Close(owner)
}
