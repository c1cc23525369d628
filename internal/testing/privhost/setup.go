package privhost

import (
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// stateDirs hold what a host knows of its network: locks, named namespaces and records below /run, address
// leases below /var/lib/cni.
var stateDirs = []string{"/run", "/var/lib/cni"}

// setUp turns the namespaces of the process into a private host.
func setUp(opts Options) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// sysfs shows the links of the namespace in which it was mounted. Where a container masks parts of it,
	// the kernel refuses a fresh one; little depends on it.
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

// loopbackUp brings up lo, which then has its addresses.
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

// setEnvironment marks the process, and all that it will start, as inside.
func setEnvironment() error {
	id, err := namespace("mnt")
	if err != nil {
		return err
	}
	if err := os.Setenv(marker, markedInside+id); err != nil {
		return fmt.Errorf("mark private host: %w", err)
	}
	// A bus that the host names would lead to the host's own firewalld.
	if err := os.Unsetenv("DBUS_SYSTEM_BUS_ADDRESS"); err != nil {
		return fmt.Errorf("forget the host's system bus: %w", err)
	}
	if err := os.Setenv("PATH", pluginexec.CompletePath(os.Getenv("PATH"))); err != nil {
		return fmt.Errorf("complete PATH: %w", err)
	}
	return nil
}
