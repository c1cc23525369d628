package crash

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/testhost"
)

const (
	// stressVariable asks for all cells, recoveries and errors, as make stress does.
	stressVariable = "ALLOCNET_STRESS"
	// seedVariable says which recovery the first point has: make stress prints it.
	seedVariable = "SEED"
)

func stress() bool { return os.Getenv(stressVariable) != "" }

func seed(t *testing.T) int {
	t.Helper()
	text := os.Getenv(seedVariable)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	return int(n % uint64(len(recoveries)))
}

// part is what one host of a campaign is for.
type part struct {
	cell       cell
	operations []string // their names
}

func (p part) String() string { return p.cell.String() + ": " + strings.Join(p.operations, ", ") }

func (p part) has(operation string) bool { return slices.Contains(p.operations, operation) }

// groups are the operations that one host sees. In each group are some that attach and
// some that remove, so that all kinds of changes are seen on each host.
var groups = [][]string{{"setup", "teardown"}, {"retry", "repair", "recover"}, {"setup again", "gc"}}

// someParts are those of make test: every operation by every engine and every kind of
// chain, interfaces in turn, and families where each needs programs of its own. Those
// that take longest come first.
func someParts() []part {
	var some []part
	for _, inTurn := range [][]cell{
		// Not IPv6 over ptp, as the reference plugin waits seconds for its address.
		{{engine: "exec", backend: "iptables", main: "bridge", family: ipv6}, {engine: "exec", backend: "iptables", main: "ptp", family: ipv4}, {engine: "exec", backend: "iptables", main: "bridge", family: ipv4}},
		{{engine: "native", backend: "iptables", main: "bridge"}, {engine: "native", backend: "nftables", main: "ptp"}, {engine: "native", backend: "nftables", main: "bridge"}},
		{{engine: "native", mixed: true, main: "bridge"}, {engine: "native", mixed: true, main: "ptp"}},
		{{engine: "native", main: "bridge"}},
		{{engine: "native", main: "ptp"}},
	} {
		for i, g := range groups {
			some = append(some, part{inTurn[i%len(inTurn)], g})
		}
	}
	return some
}

// campaign is some parts, or for make stress all cells with each of the groups.
func campaign(some []part, groups ...[]string) []part {
	if stress() {
		return combine(allCells(), groups...)
	}
	return some
}

// combine makes the parts of each cell with each group.
func combine(cells []cell, groups ...[]string) []part {
	var parts []part
	for _, c := range cells {
		for _, g := range groups {
			parts = append(parts, part{c, g})
		}
	}
	return parts
}

// allCells are those of make stress.
func allCells() []cell {
	var all []cell
	for _, main := range []string{"bridge", "ptp"} {
		for _, c := range []cell{
			{engine: "native"}, {engine: "native", backend: "iptables"}, {engine: "native", backend: "nftables"},
			{engine: "native", mixed: true}, {engine: "exec", backend: "iptables"}, {engine: "exec", backend: "nftables"},
		} {
			c.main = main
			all = append(all, c)
		}
	}
	return all
}

// eachPart runs a test on a host for each part.
func eachPart(t *testing.T, parts []part, test func(t *testing.T, p part)) {
	t.Helper()
	byName, order := map[string]part{}, []string{}
	for _, p := range parts {
		byName[p.String()] = p
		order = append(order, p.String())
	}
	testhost.EachElsewhere(t, order, func(t *testing.T, name string) { test(t, byName[name]) })
}
