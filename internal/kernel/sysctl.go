package kernel

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// SetSysctl writes a value below /proc/sys unless it stands there already. The
// path is relative and has slashes. Whose namespace is meant depends on the
// thread: inside a sandbox, call it within Do.
func SetSysctl(path, value string) error {
	file := filepath.Join("/proc/sys", path)
	current, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", path, err)
	}
	if bytes.Equal(bytes.TrimSpace(current), []byte(value)) {
		return nil
	}
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", path, value, err)
	}
	return nil
}

// EnableForwarding lets the host forward packets of the families that are asked
// for.
func EnableForwarding(v4, v6 bool) error {
	if v4 {
		if err := SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
	}
	if v6 {
		return SetSysctl("net/ipv6/conf/all/forwarding", "1")
	}
	return nil
}
