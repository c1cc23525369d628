package firewalld

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// traceFiles exist while firewalld is running: its PID file if no service manager
// started it, and its control group under systemd. They are used if the bus is not
// reachable.
var traceFiles = []string{
	"/run/firewalld.pid",
	"/sys/fs/cgroup/system.slice/firewalld.service",
	"/sys/fs/cgroup/systemd/system.slice/firewalld.service",
}

func hasTraceFile() bool {
	return slices.ContainsFunc(traceFiles, func(file string) bool {
		_, err := os.Stat(file)
		return err == nil
	})
}

// tableWatch is a cache of whether firewalld's table exists. In a container, the table
// may be the only trace of firewalld. Listing needs a socket, and closing an nftables
// socket can wait for the kernel.
type tableWatch struct {
	looked time.Time // of the last listing
	found  bool
}

// lookTime is how long the result of a listing is used.
const lookTime = 5 * time.Second

func (w *tableWatch) exists() bool {
	if time.Since(w.looked) < lookTime {
		return w.found
	}
	found, err := tableExists()
	w.looked, w.found = time.Now(), err == nil && found
	return w.found
}

func tableExists() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("look for firewalld's table: %w", err)
	}
	_, err = conn.ListTableOfFamily("firewalld", nftables.TableFamilyINet)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for firewalld's table: %w", err)
	}
	return true, nil
}
