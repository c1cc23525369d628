package conntrack

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
)

const (
	counterPath = "/proc/sys/net/netfilter/nf_conntrack_count"
	// textPath does not exist if the kernel was built without
	// CONFIG_NF_CONNTRACK_PROCFS.
	textPath = "/proc/thread-self/net/nf_conntrack"
)

// unknown is the number of entries if it cannot be read.
const unknown = int(^uint(0) >> 1)

// count returns the number of entries. If the kernel has no counter, it tracks no
// connections.
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

// readCount reads the counter. It keeps the file open, because reading an open file
// takes a few microseconds only. With anywhere it closes the file again.
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

// fewEntries is the maximum number of entries for which reading their text takes less
// time than a list, for which the kernel locks every bucket of the table in turn.
const fewEntries = 1000

// eachLine calls use with each line of the entries' text, which contains both families
// and both directions, until use returns false. eachLine returns false if some lines
// may be missing, or if there are too many entries.
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

// absent reports whether the text shows that there is no entry of the ports.
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

// present returns the addresses that are the source of a first packet or of an answer
// according to the text. If the text is incomplete, it returns all addresses.
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

// limitPath is the file with the maximum number of entries in each network namespace.
const limitPath = "/proc/sys/net/netfilter/nf_conntrack_max"

// Fill returns the number of entries in the network namespace of the calling thread, and
// the number beyond which the kernel drops new connections; 0 for no limit. errors.Is
// finds fs.ErrNotExist if the kernel does not track connections.
func Fill() (entries, limit int, err error) {
	if entries, err = readNumber(counterPath); err == nil {
		limit, err = readNumber(limitPath)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("count tracked connections: %w", err)
	}
	return entries, limit, nil
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text)))
}
