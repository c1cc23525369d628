package main

import (
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/portmap"
)

const longID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestNaturally(t *testing.T) {
	list := []string{"web-10", "web-2", "web", "web-02", "a", "web-2b", "web-99999999999999999999"}
	slices.SortFunc(list, naturally)
	require.Equal(t, []string{"a", "web", "web-02", "web-2", "web-2b", "web-10", "web-99999999999999999999"}, list)
}

func TestShortIDs(t *testing.T) {
	require.Equal(t, "0123456789ab.eth0", shortID(longID+".eth0"))
	require.Equal(t, "0123456789ab", shortID(longID))
	require.Equal(t, "web", shortID("web"))
	for short, want := range map[string]bool{
		"0123": true, "0123456789ab": true, "0123456789ab.eth0": true, longID: true, "0123.eth0": true,
		"012": false, "01.eth0": false, "0123456789ab.eth1": false, "0123456789ab.eth": false, "f123": false, ".eth0": false, "": false,
	} {
		require.Equal(t, want, isPrefix(minPrefix)(short, longID+".eth0"), short)
	}
	require.False(t, isPrefix(minPrefix)("web", "web-2"))
}

// TestListOfRuntimesAllocations: the list fits a terminal, and other commands
// accept its IDs.
func TestListOfRuntimesAllocations(t *testing.T) {
	w := newWorkspace(t)
	other := strings.Repeat("0123fedc", 8)
	for _, id := range []string{longID + ".eth0", other, "web-10", "web-2"} {
		w.sandbox(id)
		w.run("setup", id).ok(t)
	}
	lines := strings.Split(w.run("ls").ok(t), "\n")
	for i, id := range []string{"ID", "0123fedc0123", "0123456789ab.eth0", "web-2", "web-10"} {
		require.Equal(t, id, strings.Fields(lines[i])[0])
		require.LessOrEqual(t, len(lines[i]), 80, lines[i])
	}
	require.Contains(t, w.run("ls", "--wide").ok(t), longID+".eth0")
	require.Equal(t, "web-2\nweb-10\n", strings.SplitAfterN(w.run("ls", "-q", "--filter", "network=front", "--filter", "state=ready").ok(t), "\n", 3)[2])
	require.Empty(t, w.run("ls", "-q", "--filter", "network=back").ok(t))
	require.Contains(t, w.run("ls", "--filter", "state=foo", "--json").failure(t, exitUsage).Error, "use one of adding, ready, deleting, gone")

	require.Contains(t, w.run("inspect", "0123456789ab.eth0").ok(t), longID)
	require.Contains(t, w.run("check", "0123456789ab").ok(t), longID+".eth0")
	ambiguous := w.run("inspect", "0123", "--json").failure(t, exitUsage)
	require.Contains(t, ambiguous.Error, `ID "0123": matches 2 allocations`)
	missing := w.run("inspect", "web", "--json").failure(t, exitNo)
	require.Equal(t, "not-found", missing.Kind)
	require.Contains(t, w.run("ls", "-o", "wide").ok(t), longID+".eth0")
	require.Equal(t, w.run("ls", "--json").ok(t), w.run("ls", "-o", "json").ok(t))
	require.Equal(t, w.run("ls", "-q").ok(t), w.run("ls", "-o", "name").ok(t))
	require.Contains(t, w.run("ls", "-o", "xml", "--json").failure(t, exitUsage).Error, `--output "xml"`)

	require.Contains(t, w.run("cleanup", "--audit", "012345").ok(t), longID+".eth0 (live)")
	require.Contains(t, w.run("cleanup", "--audit", "0123", "--json").failure(t, exitUsage).Error, "matches 2 allocations")
	require.Contains(t, w.run("gc", "--live", "0123", "--dry-run", "--json").failure(t, exitUsage).Error, "too short for 2 allocations")
	kept := w.run("gc", "--live", "0123fedc0123", "--live", "0123456789ab.eth0", "--dry-run", "--json")
	require.ElementsMatch(t, []string{other, longID + ".eth0"}, decode[gcReport](t, kept.ok(t)).Kept)
	require.NotContains(t, kept.errOut, "is not set up")
	w.sandbox("second")
	w.run("setup", longID+".eth1", "--netns", "/run/netns/second").ok(t)
	kept = w.run("gc", "--live", longID, "--dry-run", "--json")
	require.Equal(t, []string{longID + ".eth0", longID + ".eth1"}, decode[gcReport](t, kept.ok(t)).Kept, "both are of that container")
	w.run("teardown", longID+".eth1").ok(t)
	w.run("teardown", "0123fedc0123").ok(t)
	w.run("teardown", "web").ok(t)
	require.Equal(t, longID+".eth0\nweb-2\nweb-10\n", w.run("ls", "-q").ok(t))
}

// TestHintsNameTheID: hints contain the ID of the allocation in the command or
// error.
func TestHintsNameTheID(t *testing.T) {
	require.Contains(t, hintFor(configurator.ErrSetUp, "web"), "`allocnet teardown web`")
	require.Contains(t, hintFor(&configurator.AllocationError{ID: "db", Err: configurator.ErrSetUp}, ""), "`allocnet teardown db`")
	require.Contains(t, hintFor(configurator.ErrSetUp, "not one; rm"), "`allocnet teardown ID`")
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	got := w.run("setup", "web", "--network", "back", "--json").failure(t, exitFailure)
	require.Contains(t, got.Hint, "`allocnet inspect web`")
	require.Contains(t, got.Hint, "`allocnet teardown web`")
}

// TestHintsNameNoFlagJustUsed: hints suggest no flag that was used already.
func TestHintsNameNoFlagJustUsed(t *testing.T) {
	all := failures()
	for name, err := range sentinels {
		all["sentinel "+name] = err
	}
	for name, err := range map[string]error{
		"events": followError(client.ErrUnavailable), "events end": followError(io.EOF), "leftovers": errLeftovers, "bridge": errors.New("exchange full"),
		"address": errors.New("requested IP address 10.0.0.1 is not available"), "duplicate": lease.ErrDuplicate,
	} {
		all[name] = err
	}
	flag := regexp.MustCompile("--[a-z-]+")
	for name, err := range all {
		full := hint(err)
		require.NotRegexp(t, `[\[\]|]`, full, name)
		for _, used := range flag.FindAllString(full, -1) {
			if errors.Is(err, errLeftovers) || used == "--help" {
				continue // cleanup --audit excludes --force, and --help has no errors
			}
			without := hint(err, used)
			require.NotContains(t, without, used, "%s: %s", name, full)
			require.NotRegexp(t, `[\[\]|]|  | [,;.)]`, without, name)
		}
	}
	missing := runWith("", "ls", "--socket", t.TempDir()+"/s", "--json").failure(t, exitFailure)
	require.Equal(t, "start it (systemctl start allocnetd), or use no daemon (--no-daemon)", missing.Hint)
}

func TestRangesAreOneLine(t *testing.T) {
	var ports []portmap.Mapping
	for i := range 1000 {
		for _, protocol := range []string{"tcp", "udp"} {
			ports = append(ports, portmap.Mapping{HostPort: 20000 + i, ContainerPort: 30000 + i, Protocol: protocol, Label: "rtp"})
		}
	}
	items := portItems(ports)
	require.Len(t, items, 1)
	require.Equal(t, "20000-20999->30000-30999/tcp+udp", items[0].String())
	ports[500].Label, ports[501].Label = "other", "other"
	require.Len(t, portItems(ports), 3)
	require.Equal(t, "20000-20999->30000-30999/tcp+udp", shortPorts(ports))
}

func TestFilter(t *testing.T) {
	r := &configurator.Record{Phase: configurator.PhaseReady, Networks: []configurator.NetworkRecord{{Network: "a"}, {Network: "b"}}}
	gone := *r
	gone.NetnsGone = true
	for text, want := range map[string][2]bool{
		"": {true, true}, "network=b": {true, true}, "network=c": {}, "state=ready": {true, false}, "state=gone": {false, true},
		"network=c network=a state=ready": {true, false}, "network=c state=ready": {}, "state=adding": {},
	} {
		f, err := parseFilter(strings.Fields(text))
		require.NoError(t, err)
		require.Equal(t, want, [2]bool{f.passes(r), f.passes(&gone)}, text)
	}
	for _, bad := range []string{"network", "network=", "name=x", ""} {
		_, err := parseFilter([]string{bad})
		require.Error(t, err, bad)
	}
}
