package sandbox

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// identity tells namespaces apart.
type identity struct {
	device, inode uint64
}

// home is the namespace that the process was started in. Later, no thread can be trusted to be there.
var home, errHome = homeIdentity()

func homeIdentity() (identity, error) {
	file, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return identity{}, err
	}
	defer file.Close()
	return identify(file)
}

// open opens the network namespace at path, which must not be home.
func open(path string) (*os.File, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := checkSandbox(file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// checkSandbox returns nil if file is a network namespace other than home.
func checkSandbox(file *os.File) error {
	kind, err := namespaceKind(file)
	if err != nil {
		return err
	}
	if kind != unix.CLONE_NEWNET {
		return ErrNotNamespace
	}
	if errHome != nil {
		return fmt.Errorf("identify namespace of host: %w", errHome)
	}
	id, err := identify(file)
	if err != nil {
		return err
	}
	if id == home {
		return ErrHostNamespace
	}
	return nil
}

// namespaceKind returns the flag of clone(2) for the kind of namespace that file is, or 0 if it is none.
func namespaceKind(file *os.File) (int, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &stat); err != nil {
		return 0, os.NewSyscallError("fstatfs", err)
	}
	if stat.Type != unix.NSFS_MAGIC {
		return 0, nil
	}
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE)
	return kind, os.NewSyscallError("ioctl NS_GET_NSTYPE", err)
}

func identify(file *os.File) (identity, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return identity{}, os.NewSyscallError("fstat", err)
	}
	return identity{device: stat.Dev, inode: stat.Ino}, nil
}

// loopbackUp brings up lo in the namespace of the thread.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find link \"lo\": %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up link \"lo\": %w", err)
	}
	return nil
}
