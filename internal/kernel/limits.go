package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrLimit: a limit of the host is reached; the text names it.
var ErrLimit = errors.New("a limit of the host is reached")

// limits looks at what a host has to have room for, beyond what requests
// themselves are refused for: a neighbour for every allocation. Where the table
// is full, allocations would be set up that nobody reaches.
type limits struct {
	root string // of /proc

	mu     sync.Mutex
	looked time.Time
	found  error
}

// limitsTime is how long an answer serves.
const limitsTime = time.Second

// Limits is ErrLimit where a neighbour table is full. It looks once a second at
// most. In a network namespace other than the first, whose limits nobody there
// can see, it finds nothing.
func (h *Host) Limits() error { return h.limits.check() }

func (l *limits) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.looked) < limitsTime {
		return l.found
	}
	l.looked = time.Now()
	l.found = errors.Join(l.neighbours("ipv4", "arp_cache"), l.neighbours("ipv6", "ndisc_cache"))
	return l.found
}

// neighbours compares the entries of a table with the most that it can have:
// neigh/default/gc_thresh3 of Documentation/networking/ip-sysctl.rst.
func (l *limits) neighbours(family, table string) error {
	key := "net/" + family + "/neigh/default/gc_thresh3"
	text, err := os.ReadFile(filepath.Join(l.root, "sys", key))
	if err != nil {
		return nil
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}
	entries, err := neighbourEntries(filepath.Join(l.root, "net/stat", table))
	if err != nil || entries < most {
		return nil
	}
	return fmt.Errorf("%w: the neighbour table has %d entries, and %s allows %d; raise it, and gc_thresh1 and gc_thresh2 below it",
		ErrLimit, entries, strings.ReplaceAll(key, "/", "."), most)
}

// neighbourEntries reads the first number, in hexadecimal, below a line of
// titles.
func neighbourEntries(file string) (int, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan()
	if !lines.Scan() {
		return 0, errors.Join(lines.Err(), fmt.Errorf("%s: no second line", file))
	}
	first, _, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
	n, err := strconv.ParseInt(first, 16, 64)
	return int(n), err
}
