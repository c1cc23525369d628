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

// ErrLimit: a limit of the host is reached; the text names it.
var ErrLimit = allocnet.ErrLimit

// limits looks at what a host has to have room for, beyond what requests
// themselves are refused for: a neighbour for every allocation. Where the table
// is full, allocations would be set up that nobody reaches.
type limits struct {
	root string // of /proc

	mu     sync.Mutex
	looked time.Time
	found  error
	// fulls are the overflows that the kernel had counted at the last look, by
	// table.
	fulls map[string]uint64
}

const (
	// limitsTime is how long an answer serves.
	limitsTime = time.Second
	// limitsMemory is how old a count may be to be compared with: overflows of
	// longer ago are over.
	limitsMemory = 10 * limitsTime
)

// Limits is ErrLimit while a neighbour table overflows: where the kernel counted
// overflows between the last two looks. It looks once a second at most. How many
// entries there are says little, for those that stay for ever, and those that can
// go at once, count as well. In a network namespace other than the first, whose
// limits nobody there can see, it finds nothing.
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

// neighbours compares the overflows of a table with those at the last look. The
// most entries that it can have are neigh/default/gc_thresh3 of
// Documentation/networking/ip-sysctl.rst.
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

// tableFulls sums a column of hexadecimal numbers, of one line for each CPU.
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
