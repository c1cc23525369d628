package rtnl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/allocnet/allocnet"
)

// ErrLimit: a limit of the host is reached. The error text names the limit.
var ErrLimit = allocnet.ErrLimit

// limits checks for a shortage that the kernel does not report as the failure of a
// request: every allocation needs an entry in the neighbour table. If that table is
// full, allocations can be set up but not reached.
type limits struct {
	root string // the path of /proc

	mu     sync.Mutex
	looked time.Time
	found  error
	// fulls are the numbers of overflows that the kernel had counted at the last
	// check, by table.
	fulls map[string]uint64
}

const (
	// limitsTime is how long a result is reused.
	limitsTime = time.Second
	// limitsMemory is the maximum age of a count that is compared with the current
	// one. An increase over a longer time does not mean that the table still
	// overflows.
	limitsMemory = 10 * limitsTime
)

// Limits returns ErrLimit while a neighbour table overflows, that is, if the kernel
// counted overflows between the last two checks. It checks at most once a second. It
// does not use the number of entries, which includes permanent entries and those that
// the kernel can drop at once. The limits can be read in the initial network namespace
// only; in any other one, Limits finds nothing.
func (h *Host) Limits() error { return h.limits.check() }

func (l *limits) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := time.Since(l.looked)
	if since < limitsTime {
		return l.found
	}
	if since > limitsMemory || l.fulls == nil {
		l.fulls = map[string]uint64{}
	}
	l.looked = time.Now()
	l.found = errors.Join(l.neighbours("ipv4", "arp_cache"), l.neighbours("ipv6", "ndisc_cache"))
	return l.found
}

// neighbours compares the number of overflows of a table with the number at the last
// check. The maximum size of the table is neigh/default/gc_thresh3
// (Documentation/networking/ip-sysctl.rst).
func (l *limits) neighbours(family, table string) error {
	key := "net/" + family + "/neigh/default/gc_thresh3"
	most, err := os.ReadFile(filepath.Join(l.root, "sys", key))
	if err != nil {
		return nil
	}
	fulls, err := tableFulls(filepath.Join(l.root, "net/stat", table))
	if err != nil {
		return nil
	}
	before, known := l.fulls[table]
	l.fulls[table] = fulls
	if !known || fulls <= before {
		return nil
	}
	return fmt.Errorf("%w: the neighbour table overflows, %s allows %s entries; raise it, and gc_thresh1 and gc_thresh2 below it",
		ErrLimit, strings.ReplaceAll(key, "/", "."), bytes.TrimSpace(most))
}

// tableFulls returns the sum of the column table_fulls of a file. The file has a line
// of titles and, for each CPU, a line of hexadecimal numbers.
func tableFulls(file string) (sum uint64, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	titles, lines, _ := strings.Cut(string(text), "\n")
	column := slices.Index(strings.Fields(titles), "table_fulls")
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		if column < 0 || column >= len(fields) {
			return 0, fmt.Errorf("%s: no column table_fulls", file)
		}
		n, err := strconv.ParseUint(fields[column], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += n
	}
	return sum, nil
}
