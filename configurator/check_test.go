package configurator

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/version"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestCheckLooksFromOutside: CHECK compares the host with the results before it
// runs a plugin.
func TestCheckLooksFromOutside(t *testing.T) {
	const elsewhere = `{"name":"on-the-host"},`
	for name, c := range map[string]struct {
		version, result string
		change          func(*testing.T, *testHost, Allocation)
		want            string
		commands        []string
	}{
		"all is well":                                  {"1.0.0", result, nil, "", []string{"one CHECK"}},
		"a version without CHECK":                      {"0.3.1", strings.Replace(result, "1.0.0", "0.3.1", 1), nil, "", nil},
		"an interface that is on the host":             {"1.0.0", strings.NewReplacer(`[{"name":"lo"`, `[`+elsewhere+`{"name":"lo"`, `"interface":0`, `"interface":1`).Replace(result), nil, "", []string{"one CHECK"}},
		"the interface is not there":                   {"1.0.0", strings.ReplaceAll(result, `"lo"`, `"eth7"`), loseInterface, `"eth7"`, nil},
		"a version without CHECK, and it is not there": {"0.3.1", strings.NewReplacer(`"lo"`, `"eth7"`, "1.0.0", "0.3.1").Replace(result), loseInterface, `"eth7"`, nil},
		"the interface was not there after ADD":        {"1.0.0", strings.ReplaceAll(result, `"lo"`, `"eth8"`), nil, "", []string{"one CHECK"}},
		"the address is not there": {"1.0.0", result, func(t *testing.T, _ *testHost, a Allocation) {
			loseAddress(t, a.Netns)
		}, "lost its address 127.0.0.1/8", nil},
		"the netns is gone": {"1.0.0", result, func(t *testing.T, _ *testHost, a Allocation) {
			require.NoError(t, sandbox.Destroy(a.Netns))
		}, "netns", nil},
		"ADD did not end": {"1.0.0", result, func(_ *testing.T, h *testHost, _ Allocation) {
			h.setPhase("a", record.Adding)
		}, `phase "adding"`, nil},
		"DEL did not end": {"1.0.0", result, func(_ *testing.T, h *testHost, _ Allocation) {
			h.setPhase("a", record.Deleting)
		}, `phase "deleting"`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.network("net", c.version, adds(behaviours{"ADD": {Result: json.RawMessage(c.result)}}))
			a := h.alloc("a")
			inside(t, a.Netns, "ip link add eth7 type veth peer name peer7")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			h.commands()
			if c.change != nil {
				c.change(t, h, a)
			}
			err = h.Check(t.Context(), a)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrUnhealthy)
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, `"a"`)
			}
			require.ElementsMatch(t, c.commands, h.commands())
		})
	}
}

func loseInterface(t *testing.T, _ *testHost, a Allocation) { inside(t, a.Netns, "ip link del eth7") }

// inside runs a command line of sh in a network namespace, and returns its output.
func inside(t *testing.T, netns, line string) string {
	t.Helper()
	ns, err := sandbox.Open(netns)
	require.NoError(t, err)
	defer ns.Close()
	var out []byte
	require.NoError(t, ns.Do(func() (err error) {
		out, err = exec.Command("sh", "-c", line).CombinedOutput()
		return err
	}), line)
	return string(out)
}

func loseAddress(t *testing.T, netns string) {
	t.Helper()
	ns, err := sandbox.Open(netns)
	require.NoError(t, err)
	defer ns.Close()
	require.NoError(t, ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("127.0.0.1/8")
		if err != nil {
			return err
		}
		return netlink.AddrDel(lo, addr)
	}))
}

func TestVersionThatAPluginDoesNotKnowIsNotTriedAgain(t *testing.T) {
	require.False(t, transient(&version.ErrorIncompatible{Config: "1.0.0", Supported: []string{"0.4.0"}}))
}

// TestForceWithoutRecord: without a record, Force uses the current
// configuration.
func TestForceWithoutRecord(t *testing.T) {
	h := newTestHost(t)
	leases := h.bridged("net", adds())
	held, foreign := writeLease(t, leases, "10.9.9.9", "a"), writeLease(t, leases, "10.9.9.10", "b")
	left, err := h.Audit(t.Context(), Allocation{ID: "a"})
	require.NoError(t, err)
	require.Len(t, left, 1)
	removed, err := h.Force(t.Context(), Allocation{ID: "a"})
	require.NoError(t, err)
	require.Equal(t, left, removed)
	require.NoFileExists(t, held)
	require.FileExists(t, foreign)
	require.Empty(t, h.commands())
}

// TestReadyNamesAllFaults: Ready reports all faults and changes nothing.
func TestReadyNamesAllFaults(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Networks = []string{"first", "second", "good"} })
	h.network("good", "1.1.0", adds())
	err := h.Ready(t.Context())
	require.ErrorIs(t, err, ErrUnknownNetwork)
	require.ErrorContains(t, err, `"first"`)
	require.ErrorContains(t, err, `"second"`)
	require.Equal(t, []string{"one STATUS"}, h.commands())
	entries, err := os.ReadDir(h.cfg.StateDir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NotContains(t, e.Name(), "ready")
	}
}

// TestPluginDirsOfAChain: vendors' directories come first, those of IPAM
// plugins are included, and none is repeated.
func TestPluginDirsOfAChain(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.VendorDir = "/vendor" })
	n := `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"one","ipam":{"type":"pool"}},{"type":"two"},{"type":"one"}]}`
	req, err := h.request(h.planOf(&record.Record{Attachments: []record.Attachment{{Network: "net", Config: []byte(n)}}}))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"/vendor/opt/one/bin", "/vendor/opt/two/bin", "/vendor/opt/pool/bin", h.bin}, req.PluginDirs)
	require.Equal(t, h.bin, req.PluginDirs[3])
}

func TestDefaults(t *testing.T) {
	t.Setenv("CNI_PATH", "/a:/b")
	c := Config{Retry: RetryPolicy{Delay: -1, Jitter: -1}}.withDefaults()
	require.Equal(t, []string{"/a", "/b"}, c.PluginDirs)
	require.Equal(t, RetryPolicy{Attempts: 3}, c.Retry, "less than nothing means no wait")
	t.Setenv("CNI_PATH", "")
	c = Config{}.withDefaults()
	require.Equal(t, []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}, c.PluginDirs)
	require.Equal(t, RetryPolicy{Attempts: 3, Delay: time.Second, Jitter: time.Second}, c.Retry)
	require.Equal(t, time.Minute, c.Timeout)
	require.Equal(t, EngineAuto, c.Engine)
	require.Equal(t, []string{""}, c.Networks)
}

// contradict adds a result to a record that names a missing interface.
func contradict(r *record.Record) {
	r.Attachments[0].Result = json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8","interface":7}]}`)
}

// TestListOfARecordWithoutStatus: such a record is listed, and the error names
// it.
func TestListOfARecordWithoutStatus(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	for _, id := range []string{"a", "b"} {
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
	}
	h.changeRecord("a", contradict)
	records, err := h.List(t.Context())
	require.ErrorIs(t, err, ErrInvalidResult)
	require.ErrorContains(t, err, `"a"`)
	require.Len(t, records, 2)
	require.Nil(t, records[0].Status)
	require.NotNil(t, records[1].Status)
}

func TestNULInArgs(t *testing.T) {
	for _, args := range []map[string]string{{"K": "a\x00b"}, {"a\x00b": "V"}} {
		a := Allocation{ID: "a", Netns: "/run/netns/a", Args: args}
		require.ErrorIs(t, plan.Validate(&a), ErrInvalidAllocation)
		a = Allocation{ID: "a", Netns: "/run/netns/a", SchedulerArgs: args}
		require.ErrorIs(t, plan.Validate(&a), ErrInvalidAllocation)
	}
}

func TestLabelsAreNotForPlugins(t *testing.T) {
	ports := []portmap.Mapping{{Label: "http", HostPort: 80, ContainerPort: 80, Protocol: "tcp"}}
	args, err := plan.CapabilityArgs(&Allocation{}, ports)
	require.NoError(t, err)
	require.NotContains(t, string(args["portMappings"]), "http")
	require.Equal(t, "http", ports[0].Label, "the caller's are left as they are")
}

// TestContradictoryRecordedResult: DEL runs without such a result.
func TestContradictoryRecordedResult(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.changeRecord("a", contradict)
	require.NoError(t, h.Teardown(t.Context(), a))
	calls := h.calls()
	require.NotContains(t, string(calls[len(calls)-1].Stdin), "prevResult")
	require.NoFileExists(t, filepath.Join(h.cfg.StateDir, "allocs", "a.json"))
}

// TestCheckAll: the CHECKs of many allocations are no operations of the Observer, and each
// has its own outcome.
func TestCheckAll(t *testing.T) {
	o := &observed{}
	h := newTestHost(t, func(c *Config) { c.Observer = o })
	for id, check := range map[string]fakeplugin.Behaviour{"well": {}, "ill": {Code: 100, Msg: "a route is missing"}, "unknown": {Code: 11, Msg: "later"}} {
		h.network("net", "1.0.0", adds(behaviours{"CHECK": check}))
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
	}
	o.take()
	health := h.CheckAll(t.Context(), []string{"well", "ill", "unknown", "nobody"})
	require.Empty(t, o.take())
	require.Len(t, health, 3)
	require.NoError(t, health["well"])
	require.Contains(t, health, "well")
	require.ErrorIs(t, health["ill"], ErrUnhealthy)
	require.ErrorIs(t, health["unknown"], ErrNotChecked)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Empty(t, h.CheckAll(ended, []string{"well", "ill"}), "what was not reached has no outcome")
}
