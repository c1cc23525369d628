package conntrack

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
)

const (
	counterPath = "/proc/sys/net/netfilter/nf_conntrack_count"
	// textPath is missing where the kernel was built without
	// CONFIG_NF_CONNTRACK_PROCFS.
	textPath = "/proc/thread-self/net/nf_conntrack"
)

// unknown is a count that could not be read.
const unknown = int(^uint(0) >> 1)

// count is how many entries there are. Where there is no counter, the kernel tracks
// nothing.
func (c *Conn) count() int {
	n, err := c.readCount()
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		return unknown
	}
	return n
}

// readCount reads the counter. An open file is read in a few microseconds.
func (c *Conn) readCount() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	file := c.counter
	if file == nil {
		var err error
		if file, err = os.Open(counterPath); err != nil {
			return 0, err
		}
		if c.anywhere {
			defer file.Close()
		} else {
			c.counter = file
		}
	}
	var text [20]byte
	n, _ := file.ReadAt(text[:], 0)
	return strconv.Atoi(string(bytes.TrimSpace(text[:n])))
}

// fewEntries is up to how many entries their text is read in less time than it
// takes to have them listed, for which the kernel locks every bucket of the table
// in turn.
const fewEntries = 1000

// each line of the entries' text, which shows both families and directions, goes
// to a function until that returns false. It reports false where not all of them
// may have been seen, or are too many to be worth it.
func (c *Conn) eachLine(use func(line []byte) bool) bool {
	if c.noText.Load() || c.count() > fewEntries {
		return false
	}
	file, err := os.Open(textPath)
	if err != nil {
		c.noText.Store(errors.Is(err, fs.ErrNotExist))
		return false
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if !use(lines.Bytes()) {
			return true
		}
	}
	return lines.Err() == nil
}

// absent reports whether the text shows no entry of the ports.
func (c *Conn) absent(ports []Port) bool {
	words := make([][]byte, len(ports))
	for i, p := range ports {
		words[i] = []byte(" dport=" + strconv.Itoa(int(p.Number)) + " ")
	}
	found := false
	whole := c.eachLine(func(line []byte) bool {
		found = slices.ContainsFunc(words, func(w []byte) bool { return bytes.Contains(line, w) })
		return !found
	})
	return whole && !found
}

// present are those of the addresses that entries come from, or are answered by,
// as far as the text tells: else all.
func (c *Conn) present(addrs []netip.Addr) []netip.Addr {
	wanted := make(map[string]netip.Addr, len(addrs))
	for _, a := range addrs {
		wanted[a.StringExpanded()] = a
	}
	var found []netip.Addr
	whole := c.eachLine(func(line []byte) bool {
		for _, part := range bytes.Split(line, []byte(" src="))[1:] {
			text, _, _ := bytes.Cut(part, []byte(" "))
			if a, ok := wanted[string(text)]; ok && !slices.Contains(found, a) {
				found = append(found, a)
			}
		}
		return true
	})
	if !whole {
		return addrs
	}
	return found
}
