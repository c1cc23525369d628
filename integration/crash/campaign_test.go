package crash

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/privhost"
)

const (
	// stressVariable asks for all cells, recoveries and errors, as make stress does.
	stressVariable = "ALLOCNET_STRESS"
	// seedVariable says which recovery the first point has: make stress prints it.
	seedVariable = "SEED"
	// cellVariable is the cell that a test binary on a host of its own is for.
	cellVariable = "ALLOCNET_TEST_CELL"
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

// part is a cell of a campaign.
type part struct {
	cell       cell
	recoveries int  // how many are tried after each point, the first ones if several
	fails      bool // whether calls fail, too
}

// parts are what make test has time for: every operation by every engine, and on
// every kind of interface. Where only some of the recoveries are tried after a point,
// those of the next are others.
var parts = []part{
	{cell{engine: "exec", main: "bridge", backend: "iptables"}, 1, false},
	{cell{engine: "native", main: "bridge"}, 2, true},
	{cell{engine: "native", main: "ptp", backend: "nftables"}, 1, false},
	{cell{engine: "native", main: "bridge", mixed: true}, 1, false},
	{cell{engine: "native", main: "ptp"}, 1, true},
}

// isDaemons reports whether a part is one for the daemon.
func isDaemons(p part) bool { return stress() || p.cell == cell{engine: "native", main: "bridge"} }

// allParts are all cells, with all recoveries after each point.
func allParts() []part {
	var all []part
	for _, main := range []string{"bridge", "ptp"} {
		for _, c := range []cell{
			{engine: "native"}, {engine: "native", backend: "iptables"}, {engine: "native", backend: "nftables"},
			{engine: "native", mixed: true}, {engine: "exec", backend: "iptables"}, {engine: "exec", backend: "nftables"},
		} {
			c.main = main
			all = append(all, part{c, len(recoveries), true})
		}
	}
	return all
}

// slots bound how many hosts there are at once: the processes on them wait for each
// other most of the time.
var slots = make(chan struct{}, 2*runtime.NumCPU())

// eachPart runs a test on a host for each part that is wanted, several at a time: each
// is a process of its own.
func eachPart(t *testing.T, wanted func(part) bool, test func(t *testing.T, p part)) {
	t.Helper()
	privhost.Require(t)
	chosen := slices.Clone(parts)
	if stress() {
		chosen = allParts()
	}
	chosen = slices.DeleteFunc(chosen, func(p part) bool { return !wanted(p) })
	if name := os.Getenv(cellVariable); name != "" {
		i := slices.IndexFunc(chosen, func(p part) bool { return p.cell.String() == name })
		require.GreaterOrEqual(t, i, 0, name)
		test(t, chosen[i])
		return
	}
	t.Parallel()
	var wait []func(t *testing.T)
	for _, p := range chosen {
		wait = append(wait, elsewhere(t, p))
	}
	for i, p := range chosen {
		t.Run(p.cell.String(), wait[i])
	}
}

// elsewhere begins a part of a test in a process of its own, and returns what waits
// for its end.
func elsewhere(t *testing.T, p part) (wait func(t *testing.T)) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=4h")
	cmd.Env = append(privhost.Another(os.Environ()), cellVariable+"="+p.cell.String())
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
		t.Logf("%s", out)
	}
}
