package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/portmap"
)

// An allocation with many ports reserves them in blocks. One directory per port
// would take seconds, for which all other allocations would wait.
const (
	// maxSingle is the largest number of ports that are reserved one by one.
	maxSingle = 128
	// blockBits is the number of low bits of a port that its block ignores: a
	// block has 1024 ports.
	blockBits = 10

	singlePrefix = "port-"
	blockPrefix  = "ports-"
)

func blockKey(port int) string { return blockPrefix + strconv.Itoa(port>>blockBits) }

func countPorts(ports []portmap.Mapping) int {
	seen := make(map[int]struct{}, len(ports))
	for _, m := range ports {
		seen[m.HostPort] = struct{}{}
	}
	return len(seen)
}

// blocksOf returns reservations of blocks. The value of each is its ports.
func blocksOf(ports []portmap.Mapping) []reservation {
	var reservations []reservation
	at := map[string]int{}
	for _, m := range ports {
		key := blockKey(m.HostPort)
		i, ok := at[key]
		if !ok {
			i = len(reservations)
			at[key] = i
			reservations = append(reservations, reservation{key: key})
		}
		reservations[i].ports = append(reservations[i].ports, m)
	}
	for i := range reservations {
		reservations[i].value = spansOf(reservations[i].ports).String()
	}
	return reservations
}

// spans are ranges of ports, each with its first and last port.
type spans [][2]int

func spansOf(ports []portmap.Mapping) spans {
	numbers := make([]int, 0, len(ports))
	for _, m := range ports {
		numbers = append(numbers, m.HostPort)
	}
	slices.Sort(numbers)
	var all spans
	for _, n := range slices.Compact(numbers) {
		if last := len(all) - 1; last >= 0 && all[last][1] == n-1 {
			all[last][1] = n
		} else {
			all = append(all, [2]int{n, n})
		}
	}
	return all
}

// String returns spans in the form of a reservation's value: "=1-9,20-20".
func (s spans) String() string {
	text := make([]string, len(s))
	for i, span := range s {
		text[i] = fmt.Sprintf("%d-%d", span[0], span[1])
	}
	if value := "=" + strings.Join(text, ","); len(value) <= maxValue {
		return value
	}
	return everything
}

// parseSpans parses the output of String.
func parseSpans(value string) (all spans, ok bool) {
	text, ok := strings.CutPrefix(value, "=")
	if !ok {
		return nil, false
	}
	for span := range strings.SplitSeq(text, ",") {
		first, last, _ := strings.Cut(span, "-")
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA != nil || errB != nil {
			return nil, false
		}
		all = append(all, [2]int{a, b})
	}
	return all, true
}

func (s spans) contain(port int) bool {
	return slices.ContainsFunc(s, func(span [2]int) bool { return span[0] <= port && port <= span[1] })
}

// overlapping returns the reservations in the other form that may conflict with
// the requested ones: blocks for single ports, and single ports for blocks. It
// only looks at single ports that exist in the index, no matter how many ports
// are requested.
func (x index) overlapping(reservations []reservation) ([]reservation, error) {
	var overlapping []reservation
	wanted := map[string][]portmap.Mapping{}
	for _, c := range reservations {
		switch {
		case strings.HasPrefix(c.key, singlePrefix):
			overlapping = append(overlapping, reservation{key: blockKey(c.ports[0].HostPort), ports: c.ports})
		case strings.HasPrefix(c.key, blockPrefix):
			for _, m := range c.ports {
				name := singlePrefix + strconv.Itoa(m.HostPort)
				wanted[name] = append(wanted[name], m)
			}
		}
	}
	if len(wanted) == 0 {
		return overlapping, nil
	}
	entries, err := os.ReadDir(string(x))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for reservations: %w", fault(filepath.Dir(string(x)), err))
	}
	for _, e := range entries {
		if ports := wanted[e.Name()]; ports != nil {
			overlapping = append(overlapping, reservation{key: e.Name(), ports: ports})
		}
	}
	return overlapping, nil
}
