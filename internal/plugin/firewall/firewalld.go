package firewall

import (
	"os"

	"github.com/google/nftables"
)

// firewalldMarks are there while firewalld runs: the file that its daemon writes
// when no service manager runs it, and the control group when systemd does.
var firewalldMarks = []string{
	"/run/firewalld.pid",
	"/sys/fs/cgroup/system.slice/firewalld.service",
	"/sys/fs/cgroup/systemd/system.slice/firewalld.service",
}

// firewalldRuns says whether firewalld decides on what is forwarded, after and
// regardless of what any other table accepts. Seen from a container it may be
// there only by its table.
func firewalldRuns() bool {
	for _, mark := range firewalldMarks {
		if _, err := os.Stat(mark); err == nil {
			return true
		}
	}
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	table, err := conn.ListTableOfFamily("firewalld", nftables.TableFamilyINet)
	return err == nil && table != nil
}
