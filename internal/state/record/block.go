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

// An allocation with many ports claims them by blocks: a directory for each port
// would keep all others waiting for seconds.
const (
	// mostSingle is how many ports are claimed one by one.
	mostSingle = 128
	// blockBits make a block of 1024 ports.
	blockBits = 10

	singlePrefix = "port-"
	blockPrefix  = "ports-"
)

func blockThing(port int) string { return blockPrefix + strconv.Itoa(port>>blockBits) }

func countPorts(ports []portmap.Mapping) int {
	seen := make(map[int]struct{}, len(ports))
	for _, m := range ports {
		seen[m.HostPort] = struct{}{}
	}
	return len(seen)
}

// blocksOf are claims of blocks, each with the ports of it as its part.
func blocksOf(ports []portmap.Mapping) []claim {
	var claims []claim
	at := map[string]int{}
	for _, m := range ports {
		thing := blockThing(m.HostPort)
		i, ok := at[thing]
		if !ok {
			i = len(claims)
			at[thing] = i
			claims = append(claims, claim{thing: thing})
		}
		claims[i].ports = append(claims[i].ports, m)
	}
	for i := range claims {
		claims[i].part = spansOf(claims[i].ports).String()
	}
	return claims
}

// spans are ports that follow each other, first and last.
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

// String is spans as a part has them: "=1-9,20-20".
func (s spans) String() string {
	text := make([]string, len(s))
	for i, span := range s {
		text[i] = fmt.Sprintf("%d-%d", span[0], span[1])
	}
	if part := "=" + strings.Join(text, ","); len(part) <= longestPart {
		return part
	}
	return everything
}

// parseSpans reads what String made.
func parseSpans(part string) (all spans, ok bool) {
	text, ok := strings.CutPrefix(part, "=")
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

// crossing are the claims that may be in the way of those in the other form, each
// with the ports that are wanted: blocks for single ports, and single ports for
// blocks. Of the latter only those that are there are looked at, however many ports
// are wanted.
func (x index) crossing(claims []claim) ([]claim, error) {
	var crossing []claim
	wanted := map[string][]portmap.Mapping{}
	for _, c := range claims {
		switch {
		case strings.HasPrefix(c.thing, singlePrefix):
			crossing = append(crossing, claim{thing: blockThing(c.ports[0].HostPort), ports: c.ports})
		case strings.HasPrefix(c.thing, blockPrefix):
			for _, m := range c.ports {
				name := singlePrefix + strconv.Itoa(m.HostPort)
				wanted[name] = append(wanted[name], m)
			}
		}
	}
	if len(wanted) == 0 {
		return crossing, nil
	}
	entries, err := os.ReadDir(string(x))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for claims: %w", fault(filepath.Dir(string(x)), err))
	}
	for _, e := range entries {
		if ports := wanted[e.Name()]; ports != nil {
			crossing = append(crossing, claim{thing: e.Name(), ports: ports})
		}
	}
	return crossing, nil
}
