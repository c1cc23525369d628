package crash

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/privhost"
)

const (
	// stressVariable asks for all cells, recoveries and errors, as make stress does.
	stressVariable = "ALLOCNET_STRESS"
	// seedVariable says which recovery the first point has: make stress prints it.
	seedVariable = "SEED"
	// partVariable is the part that a test binary on a host of its own is for.
	partVariable = "ALLOCNET_TEST_PART"
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
	recoveries int      // how many are tried after each point, the first ones if several
}

func (p part) String() string { return p.cell.String() + ": " + strings.Join(p.operations, ", ") }

func (p part) has(operation string) bool { return slices.Contains(p.operations, operation) }

// groups are the operations that one host sees. In each group are some that attach and
// some that remove, so that all kinds of changes are seen on each host.
var groups = [][]string{{"setup", "teardown"}, {"setup again", "gc"}, {"retry", "repair", "recover"}}

// cells are those of make test: every engine, backend and kind of interface, the ones
// that take longest first.
var cells = []cell{
	{engine: "exec", main: "bridge", backend: "iptables"},
	{engine: "native", main: "bridge"},
	{engine: "native", main: "ptp", backend: "nftables"},
	{engine: "native", main: "bridge", mixed: true},
	{engine: "native", main: "ptp"},
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

// split makes the parts of a campaign: all cells with all recoveries for make stress,
// else some cells, with one recovery after each point, another one after the next.
func split(some []cell, groups ...[]string) []part {
	recoveriesEach := 1
	if stress() {
		some, recoveriesEach = allCells(), len(recoveries)
	}
	var parts []part
	for _, c := range some {
		for _, g := range groups {
			parts = append(parts, part{cell: c, operations: g, recoveries: recoveriesEach})
		}
	}
	return parts
}

// slots bound how many hosts there are at once: the processes on them wait for each
// other most of the time.
var slots = make(chan struct{}, 2*runtime.NumCPU())

// eachPart runs a test on a host for each part, several at a time: each is a process
// of its own.
func eachPart(t *testing.T, parts []part, test func(t *testing.T, p part)) {
	t.Helper()
	privhost.Require(t)
	if name := os.Getenv(partVariable); name != "" {
		i := slices.IndexFunc(parts, func(p part) bool { return p.String() == name })
		require.GreaterOrEqual(t, i, 0, name)
		test(t, parts[i])
		return
	}
	t.Parallel()
	var wait []func(t *testing.T)
	for _, p := range parts {
		wait = append(wait, elsewhere(t, p))
	}
	for i, p := range parts {
		t.Run(p.String(), wait[i])
	}
}

// elsewhere begins a part of a test in a process of its own, and returns what waits
// for its end.
func elsewhere(t *testing.T, p part) (wait func(t *testing.T)) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=4h")
	cmd.Env = append(privhost.Another(os.Environ()), partVariable+"="+p.String())
	var out []byte
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		slots <- struct{}{}
		defer func() { <-slots }()
		out, err = cmd.CombinedOutput()
	}()
	return func(t *testing.T) {
		<-ended
		require.NoError(t, err, "%s", out)
		t.Logf("%s user and %s system time\n%s", cmd.ProcessState.UserTime(), cmd.ProcessState.SystemTime(), out)
	}
}
