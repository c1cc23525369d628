package conntrack

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
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

// count is how many entries there are. An open file is read in a few
// microseconds. Where there is none, the kernel tracks nothing.
func (c *Conn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counter == nil {
		file, err := os.Open(counterPath)
		if errors.Is(err, fs.ErrNotExist) {
			return 0
		}
		if err != nil {
			return unknown
		}
		c.counter = file
	}
	var text [20]byte
	n, _ := c.counter.ReadAt(text[:], 0)
	count, err := strconv.Atoi(string(bytes.TrimSpace(text[:n])))
	if err != nil {
		return unknown
	}
	return count
}

// fewEntries is up to how many entries their text is read in less time than it
// takes to have them listed, for which the kernel locks every bucket of the table
// in turn.
const fewEntries = 1000

// absent reports whether none of the words is in the text of any entry, which
// shows both families and directions. It reports false where there is no telling.
func (c *Conn) absent(words ...string) bool {
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
		for _, word := range words {
			if bytes.Contains(lines.Bytes(), []byte(word)) {
				return false
			}
		}
	}
	return lines.Err() == nil
}

// portWords are what entries of the ports have in their text.
func portWords(ports []Port) []string {
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = " dport=" + strconv.Itoa(int(p.Number)) + " "
	}
	return words
}

// addressWord is what entries from an address, or answered by it, have.
func addressWord(addr netip.Addr) string { return " src=" + addr.StringExpanded() + " " }
