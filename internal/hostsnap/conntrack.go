package hostsnap

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
)

// conntrack collects the tracked connections of the addresses that
// Options.Tracked selects.
func (c *collector) conntrack() error {
	if c.opts.Tracked == nil {
		return nil
	}
	text, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no connection is tracked, or the kernel lacks this file
	}
	if err != nil {
		return fmt.Errorf("read tracked connections: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		words := tuples.FindAllString(line, -1)
		if slices.ContainsFunc(words, c.isTracked) {
			c.add(false, append([]string{"conntrack", strings.Fields(line)[2]}, words...)...)
		}
	}
	return nil
}

// tuples matches the constant parts of an entry's text.
var tuples = regexp.MustCompile(`\b(?:src|dst|sport|dport)=\S+`)

func (c *collector) isTracked(word string) bool {
	_, text, _ := strings.Cut(word, "=")
	addr, err := netip.ParseAddr(text)
	return err == nil && c.opts.Tracked(addr)
}
