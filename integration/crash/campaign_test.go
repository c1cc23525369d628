package crash

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

const (
	// everyPointVariable selects every point of the operations, as make crash does. make test FULL=1
	// takes every twelfth, make test every sixtieth.
	everyPointVariable = "ALLOCNET_EVERY_POINT"
	// stressVariable selects all cells, recoveries and errors, as make stress
	// does.
	stressVariable = "ALLOCNET_STRESS"
	// seedVariable selects the recovery after the first point. make stress
	// prints it.
	seedVariable = "SEED"
)

func stress() bool { return os.Getenv(stressVariable) != "" }

// distance is that of the points at which an operation is killed, or a call of it fails.
func distance() int {
	if stress() || os.Getenv(everyPointVariable) != "" {
		return 1
	}
	if testing.Short() {
		return 60
	}
	return 12
}

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

// part is the work of one host in a campaign.
type part struct {
	cell       cell
	operations []string // their names
}

func (p part) String() string { return p.cell.String() + ": " + strings.Join(p.operations, ", ") }

// has reports whether a part has an operation. Only the plugins of which a teardown can leave
// the deletion to the background can be updated.
func (p part) has(operation string) bool {
	updates := slices.Contains([]string{update, limit, limitMore, waitForPort, handOver}, operation)
	return slices.Contains(p.operations, operation) && (!updates || p.cell.disconnects())
}

// groups are the operations that one host runs. Each group has operations that
// attach and operations that remove, so each host sees all kinds of changes.
var groups = [][]string{{"setup", "teardown"}, {"retry", "repair", "recover"}, {"setup again", "gc"}}

const (
	inBackground = "teardown in the background"
	update       = "update"
	attach       = "attach"
	detach       = "detach"
	waitForPort  = "setup that waits for a host port"
	handOver     = "teardown that hands a host port over"
)

// someParts are the parts of make test and make crash: every operation with every engine and
// every kind of chain. Interfaces vary over the groups, and families where each
// has its own programs. The longest parts come first.
func someParts() []part {
	var some []part
	for _, inTurn := range [][]cell{
		// IPv6 over ptp is left out, because the reference plugin waits seconds
		// for its address.
		{{engine: "exec", backend: "iptables", main: "bridge", family: ipv6}, {engine: "exec", backend: "iptables", main: "ptp", family: ipv4}, {engine: "exec", backend: "iptables", main: "bridge", family: ipv4}},
		{{engine: "native", backend: "iptables", main: "bridge"}, {engine: "native", backend: "nftables", main: "ptp"}, {engine: "native", backend: "nftables", main: "bridge"}},
		{{engine: "native", mixed: true, main: "bridge"}, {engine: "native", mixed: true, main: "ptp"}},
		{{engine: "native", main: "bridge"}},
		{{engine: "native", main: "ptp"}},
	} {
		for i, g := range groups {
			c := inTurn[i%len(inTurn)]
			if c.disconnects() {
				g = replaced(g, "teardown", inBackground)
			}
			if c.disconnects() && slices.Contains(g, "gc") {
				g = append(slices.Clone(g), update, limit, limitMore, attach, detach, waitForPort, handOver)
			}
			some = append(some, part{c, g})
		}
	}
	return some
}

// disconnects reports whether a teardown can leave the deletion of links to the background.
// Otherwise it is the same as one that waits.
func (c cell) disconnects() bool {
	return c.engine == configurator.EngineNative && c.backend == "" && !c.mixed
}

func replaced(list []string, old, with string) []string {
	list = slices.Clone(list)
	for i := range list {
		if list[i] == old {
			list[i] = with
		}
	}
	return list
}

// campaign returns the given parts or, for make stress, every cell with every
// group.
func campaign(some []part, groups ...[]string) []part {
	if stress() {
		return combine(allCells(), append([][]string{{update, limit, limitMore, waitForPort, handOver, "setup", "teardown"}}, groups...)...)
	}
	return some
}

// combine returns a part for every cell and group.
func combine(cells []cell, groups ...[]string) []part {
	var parts []part
	for _, c := range cells {
		for _, g := range groups {
			parts = append(parts, part{c, g})
		}
	}
	return parts
}

// allCells returns the cells of make stress.
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

// eachPart runs a test for each part, on its own host.
func eachPart(t *testing.T, parts []part, test func(t *testing.T, p part)) {
	t.Helper()
	byName, order := map[string]part{}, []string{}
	for _, p := range parts {
		byName[p.String()] = p
		order = append(order, p.String())
	}
	testhost.EachElsewhere(t, order, func(t *testing.T, name string) { test(t, byName[name]) })
}
