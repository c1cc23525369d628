package firewall

import (
	"os"
	"sync"
	"time"

	"github.com/google/nftables"
)

// firewalldMarks are there while firewalld runs: the file that its daemon writes
// when no service manager runs it, and the control group when systemd does.
var firewalldMarks = []string{
	"/run/firewalld.pid",
	"/sys/fs/cgroup/system.slice/firewalld.service",
	"/sys/fs/cgroup/systemd/system.slice/firewalld.service",
}

// FirewalldRuns says whether firewalld decides on what is forwarded, after and
// regardless of what any other table accepts. Seen from a container it may be
// there only by its table.
func FirewalldRuns() bool {
	for _, mark := range firewalldMarks {
		if _, err := os.Stat(mark); err == nil {
			return true
		}
	}
	return firewalldTable.exists()
}

// tableWatch remembers for a while whether a table is there: to look costs a
// socket, and to close one of nftables can wait for the kernel.
type tableWatch struct {
	mu     sync.Mutex
	looked time.Time
	found  bool
}

var firewalldTable tableWatch

const lookEvery = 5 * time.Second

func (w *tableWatch) exists() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.looked) < lookEvery {
		return w.found
	}
	w.looked, w.found = time.Now(), false
	if conn, err := nftables.New(); err == nil {
		table, err := conn.ListTableOfFamily("firewalld", nftables.TableFamilyINet)
		w.found = err == nil && table != nil
	}
	return w.found
}
