package telemetry

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/portmap"
)

// busy returns a Telemetry after a fixed sequence of operations, on a host with
// two networks.
func busy(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	networks := []*conflist.Network{
		network(t, "blue", dir, `"subnet":"10.1.0.0/24"`),
		network(t, "red", dir, `"ranges":[[{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00::/64"}]]`),
	}
	leased(t, dir, "blue", "10.1.0.2", "10.1.0.3", "10.9.9.9")
	r := newRig(Options{
		Version: "1.2.3", Revision: "abcdef",
		Networks: func() ([]*conflist.Network, []*conflist.FileError) {
			return networks, []*conflist.FileError{{File: "x.conflist", Err: errors.New("broken")}}
		},
		Allocations: func() (int, error) { return 2, nil },
		Pending:     func() int { return 1 },
		Pools: func() []configurator.PoolStatus {
			return []configurator.PoolStatus{{Network: "blue", Size: 4, Ready: 3, Taken: 5, Dry: 1, Discarded: 2, Err: errors.New("no")}}
		},
		Conntrack: func() (int, int, error) { return 12, 65536, nil },
		Ownerless: func() (map[string]int, error) { return map[string]int{"blue": 2, "red": 0}, nil },
		Findings:  func() (map[string]int, error) { return map[string]int{"error": 1, "warning": 0}, nil },
		Ready:     func() (map[string]int, error) { return map[string]int{"": 1, "blue": 0}, nil },
		Listeners: func() map[string]bool { return map[string]bool{"ui": false, "metrics.listen": true} },
		Links:     fakeLinks{1: {}, 7: {owner: "blue"}},
		Denied: func() ([]ruleset.Dropped, error) {
			return []ruleset.Dropped{{Owner: names.Owner{Network: "blue", ID: "a", IfName: "eth0"}, Egress: ruleset.Count{Packets: 3}}}, nil
		},
	})
	r.scrape(t)
	r.counted()
	const ms = time.Millisecond
	r.Reloaded(nil)
	r.Queue().Waiting(3)
	r.Queue().Waiting(-2)
	r.Queue().Running(1)
	r.Queue().Waited(2 * ms)
	r.Queue().Refused()
	again := types.NewError(types.ErrTryAgainLater, "later", "")
	r.operate("setup", "a", "native", []string{"blue", "red"}, nil,
		part{configurator.StepLock, 0, nil}, part{configurator.StepAdd, 2 * ms, again},
		part{configurator.StepWait, 1500 * ms, nil}, part{configurator.StepAdd, 3 * ms, nil})
	taken := &portmap.ConflictError{}
	r.operate("setup", "b", "exec", []string{"blue"}, taken, part{configurator.StepReserve, ms, taken})
	link := configurator.Leftover{Kind: cleanup.KindLink, Network: "blue", Object: "veth0"}
	left := &configurator.LeftoverError{ID: "a", Leftovers: []configurator.Leftover{link, {Kind: "novel"}}}
	r.OnForced("a", []configurator.Leftover{link, link})
	r.operate("teardown", "a", "native", []string{"blue", "red"}, fmt.Errorf("%w: %w", configurator.ErrIncomplete, left),
		part{configurator.StepDel, 20 * ms, again}, part{configurator.StepForce, 40 * ms, left})
	r.operate("gc", "", "", nil, nil)
	return r
}

var update = flag.Bool("update", false, "write the golden files anew")

func TestExposition(t *testing.T) {
	got := strings.ReplaceAll(busy(t).scrape(t), runtime.Version(), "GOVERSION")
	golden := filepath.Join("testdata", "metrics.txt")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestNamesKeepTheConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(busy(t).metrics.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// TestRegistryIsOurOwn: each Telemetry has its own registry, with the
// collectors of Go and of the process.
func TestRegistryIsOurOwn(t *testing.T) {
	a, b := newRig(Options{}), newRig(Options{}) // a shared registry would panic
	a.operate("gc", "", "", nil, nil)
	require.NotEmpty(t, a.series(t, "operations_total"))
	require.Empty(t, b.series(t, "operations_total"))
	answer := httptest.NewRecorder()
	a.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, name := range []string{"\ngo_goroutines ", "\nprocess_open_fds ", "\npromhttp_metric_handler_errors_total{"} {
		require.Contains(t, answer.Body.String(), name)
	}
}

// TestNetworksHaveFewLabels: the number of labels is bounded, however many
// names allocations use.
func TestNetworksHaveFewLabels(t *testing.T) {
	r := newRig(Options{})
	for i := range 3 * maxNetworks {
		r.operate("setup", fmt.Sprint("alloc", i), "native", []string{fmt.Sprint("net", i)}, nil, part{configurator.StepWait, 0, nil})
	}
	r.operate("setup", "a", "native", []string{"net0"}, nil)
	for _, name := range []string{"operations_total", "retries_total"} {
		list := r.series(t, name)
		require.Len(t, list, maxNetworks+1, name)
	}
	require.Contains(t, r.series(t, "operations_total"),
		`operations_total{engine="native",network="(other)",operation="setup",outcome="ok"} 200`)
	require.Contains(t, r.series(t, "operations_total"),
		`operations_total{engine="native",network="net0",operation="setup",outcome="ok"} 2`)
	require.NotContains(t, r.scrape(t), "alloc1")
}

func TestReloads(t *testing.T) {
	r := newRig(Options{})
	r.Reloaded(nil)
	r.add(time.Minute)
	r.Reloaded(errors.New("line 3"))
	require.Equal(t, []string{
		"config_last_reload_success_timestamp_seconds 1.7723664e+09", "config_last_reload_successful 0",
	}, r.series(t, "config_last"))
}

// TestHeals counts repairs by their cause. An allocation that became unhealthy is an
// event, and no repair.
func TestHeals(t *testing.T) {
	r := newRig(Options{})
	r.Compared([]string{"rules", "link"})
	r.Healed(client.Heal{Cause: "rules", Restored: 3})
	r.Healed(client.Heal{Cause: "rules", Restored: 2, BackOff: 1})
	r.Healed(client.Heal{Cause: "drift", Unhealthy: "a"})
	r.Unhealthy(1)
	require.Equal(t, []string{
		"heal_backoffs_total 1", `heal_comparisons_total{cause="link"} 1`, `heal_comparisons_total{cause="rules"} 1`,
		`heal_repairs_total{cause="address"} 0`, `heal_repairs_total{cause="drift"} 0`, `heal_repairs_total{cause="firewall"} 0`,
		`heal_repairs_total{cause="forwarding"} 0`,
		`heal_repairs_total{cause="link"} 0`, `heal_repairs_total{cause="lost"} 0`, `heal_repairs_total{cause="route"} 0`,
		`heal_repairs_total{cause="rules"} 2`, `heal_repairs_total{cause="veth"} 0`, "heal_restored_allocations_total 5",
	}, r.series(t, "heal_"))
	require.Equal(t, []string{"unhealthy_allocations 1"}, r.series(t, "unhealthy"))
	r.Unchecked(2)
	require.Equal(t, []string{"unchecked_allocations 2"}, r.series(t, "unchecked"))
}

// TestNoHealth: without checks in the background, the health of allocations is not known.
func TestNoHealth(t *testing.T) {
	r := newRig(Options{NoHealth: true})
	r.Unhealthy(0)
	require.Empty(t, r.series(t, "unhealthy"))
	require.Empty(t, r.series(t, "unchecked"))
	require.NotEmpty(t, r.series(t, "heal_"))
}

// TestCountsThatFail: what could not be counted is missing.
func TestCountsThatFail(t *testing.T) {
	r := newRig(Options{
		Findings: func() (map[string]int, error) { return nil, errors.New("no") },
		Ready:    func() (map[string]int, error) { return map[string]int{"a": 1}, nil },
	})
	r.scrape(t)
	r.counted()
	require.Equal(t, []string{`network_ready{network="a"} 1`}, r.series(t, "network_ready"))
	require.Empty(t, r.series(t, "doctor_findings"))
}

// TestRetriesThatWereCutOff: a retry that did not begin is not counted.
func TestRetriesThatWereCutOff(t *testing.T) {
	r := newRig(Options{})
	r.operate("setup", "a", "native", []string{"n"}, errors.New("x"), part{configurator.StepWait, 0, errors.New("cancelled")})
	require.Empty(t, r.series(t, "retries_total"))
}

// closed is a connection that the client has closed.
type closed struct{ http.ResponseWriter }

func (closed) Write([]byte) (int, error) {
	return 0, &net.OpError{Op: "write", Net: "unix", Err: unix.EPIPE}
}

func TestClientThatClosesEarly(t *testing.T) {
	var log bytes.Buffer
	tel, err := New(Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info})})
	require.NoError(t, err)
	tel.Handler().ServeHTTP(closed{httptest.NewRecorder()}, httptest.NewRequest("GET", "/metrics", nil))
	require.Empty(t, log.String())
}
