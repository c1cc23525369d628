package privhost

import (
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// stateDirs are the directories with the network state of a host: locks, named
// namespaces and records below /run, address leases below /var/lib/cni.
var stateDirs = []string{"/run", "/var/lib/cni"}

// setUp turns the namespaces of the process into a private host.
func setUp(opts Options) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// sysfs shows the links of the network namespace in which it was mounted. The
	// kernel refuses the mount in a container that masks parts of sysfs. The
	// error is ignored because little depends on sysfs.
	_ = unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	var cover coverer
	for _, dir := range slices.Concat(stateDirs, opts.Dirs) {
		if err := cover.dir(dir); err != nil {
			return err
		}
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	return setEnvironment()
}

// loopbackUp brings up lo, which makes the kernel add its addresses.
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

// setEnvironment marks the process and its future children as inside.
func setEnvironment() error {
	id, err := namespace("mnt")
	if err != nil {
		return err
	}
	if err := os.Setenv(marker, markedInside+id); err != nil {
		return fmt.Errorf("mark private host: %w", err)
	}
	// The system bus of the real host would lead to the real host's firewalld.
	if err := os.Unsetenv("DBUS_SYSTEM_BUS_ADDRESS"); err != nil {
		return fmt.Errorf("unset the system bus of the real host: %w", err)
	}
	if err := os.Setenv("PATH", pluginexec.CompletePath(os.Getenv("PATH"))); err != nil {
		return fmt.Errorf("complete PATH: %w", err)
	}
	return nil
}
