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

// traceFiles are there while firewalld runs: the file that its daemon writes when
// no service manager runs it, and the control group when systemd does. They tell
// where there is no bus to ask.
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

// tableWatch looks for firewalld's table: seen from a container, that may be all
// there is. What was found is good for a while: to look costs a socket, and to close
// one of nftables can wait for the kernel.
type tableWatch struct {
	looked time.Time
	found  bool
}

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
