package demo

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// log is a Reporter that records the steps.
type log struct {
	begun []string
	ended []Step
}

func (l *log) Begin(_, name string) { l.begun = append(l.begun, name) }
func (l *log) End(s Step)           { l.ended = append(l.ended, s) }

func (l *log) names(failed bool) []string {
	var names []string
	for _, s := range l.ended {
		if (s.Err != nil) == failed {
			names = append(names, s.Name)
		}
	}
	return names
}

func does(detail string, err error) action {
	return func(context.Context) (string, error) { return detail, err }
}

func TestSteps(t *testing.T) {
	var l log
	s := &steps{reporter: &l, section: "some"}
	bad := errors.New("bad")
	require.NoError(t, s.do(t.Context(), "one", does("well", nil)))
	require.ErrorIs(t, s.do(t.Context(), "two", does("not well", bad)), bad)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.do(ended, "three", does("too late", nil)), context.Canceled)

	require.Equal(t, 3, s.count)
	require.Equal(t, []string{"one", "two", "three"}, l.begun)
	require.Equal(t, "well", l.ended[0].Detail)
	require.Equal(t, "some", l.ended[0].Section)
	require.Empty(t, l.ended[1].Detail)
	require.Equal(t, bad, l.ended[1].Err)
	require.Empty(t, l.ended[2].Detail, "nothing is begun when the time is over")
}

func TestUnwindTriesEverythingInReverse(t *testing.T) {
	var l log
	s := &steps{reporter: &l}
	first, second := errors.New("first"), errors.New("second")
	s.later("a", does("", first))
	s.later("b", does("", nil))
	s.later("c", does("", second))
	err := s.unwind(t.Context())
	require.ErrorIs(t, err, first)
	require.ErrorIs(t, err, second)
	require.Equal(t, []string{"c", "b", "a"}, l.begun)
	require.NoError(t, s.unwind(t.Context()), "only once")
	require.Len(t, l.begun, 3)
}

func TestMedian(t *testing.T) {
	require.Zero(t, median(nil))
	list := []time.Duration{5, 1, 3}
	require.Equal(t, time.Duration(3), median(list))
	require.Equal(t, []time.Duration{5, 1, 3}, list)
}

func TestRequests(t *testing.T) {
	both := func(id string, port int, v4, v6 string) *allocation {
		return &allocation{id: id, hostPort: port, status: &configurator.Status{Address: v4, AddressIPv6: v6}}
	}
	list := func(a, b *allocation) []string {
		var texts []string
		for _, r := range (&demo{outside: &outside{}, allocs: []*allocation{a, b}}).requests() {
			texts = append(texts, r.from+" "+r.address+" "+r.want.id)
		}
		return texts
	}
	require.Equal(t, []string{
		"host 127.0.0.1:80 a", "host 198.51.100.1:80 a", "outside 198.51.100.1:80 a",
		"host [2001:db8:a110:c::1]:80 a", "outside [2001:db8:a110:c::1]:80 a", "b 10.0.0.1:8080 a", "b [fd00::1]:8080 a",
		"host 127.0.0.1:81 b", "host 198.51.100.1:81 b", "outside 198.51.100.1:81 b",
		"host [2001:db8:a110:c::1]:81 b", "outside [2001:db8:a110:c::1]:81 b", "a 10.0.0.2:8080 b", "a [fd00::2]:8080 b",
	}, list(both("a", 80, "10.0.0.1", "fd00::1"), both("b", 81, "10.0.0.2", "fd00::2")))
	require.Equal(t, []string{
		"host [2001:db8:a110:c::1]:80 a", "outside [2001:db8:a110:c::1]:80 a", "b [fd00::1]:8080 a",
		"host 127.0.0.1:81 b", "host 198.51.100.1:81 b", "outside 198.51.100.1:81 b", "a 10.0.0.2:8080 b",
	}, list(both("a", 80, "fd00::1", "fd00::1"), both("b", 81, "10.0.0.2", "")))
}

func TestOnARealHostOtherFilesAreOfNoConcern(t *testing.T) {
	d := &demo{Options: Options{OnHost: true, Config: configurator.Config{StateDir: "/run/allocnet"}}}
	foreign := "- file /run/other 0600 \"1\"\n+ file /run/other 0600 \"2\"\n+ file /run/allocnet-other/x 0600 \"\"\n"
	own := "+ file /run/allocnet/leases/x 0600 \"\"\n+ netns /run/netns/x\n+ link allocdemo0 veth\n- address lo 127.0.0.1/8\n+ file /var/lib/cni/x 0600 \"\"\n"
	own += "-nft element ip allocnet host_ports 0600\n"
	require.Equal(t, own, d.ofConcern(foreign+own))
	d.OnHost = false
	require.Equal(t, foreign+own, d.ofConcern(foreign+own))
}

func TestNothingBeginsWithoutPlugins(t *testing.T) {
	privhost.Require(t)
	state := t.TempDir()
	before, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(t, err)
	var l log
	summary, err := Run(t.Context(), Options{
		Config: configurator.Config{Engine: configurator.EngineExec, StateDir: state, PluginDirs: []string{"/nonexistent"}}, Reporter: &l,
	})
	require.ErrorIs(t, err, configurator.ErrPluginNotInstalled)
	require.Contains(t, l.names(true), "plugins")
	require.Equal(t, 4, summary.Steps)
	after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
}

// TestFailureTakesDownWhatStands makes the second allocation fail: its sandbox
// cannot be created.
func TestFailureTakesDownWhatStands(t *testing.T) {
	privhost.Require(t)
	inTheWay, err := sandbox.Create("allocnet-demo-b")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, inTheWay.Destroy()) })
	var l log
	d := &demo{
		Options: Options{Config: configurator.Config{StateDir: t.TempDir()}, Reporter: &l},
		steps:   &steps{reporter: &l},
		allocs:  []*allocation{{id: "allocnet-demo-a"}, {id: "allocnet-demo-b"}},
	}
	require.NoError(t, d.prepareHost(t.Context()))
	_, err = netlink.LinkByName(hostLink)
	require.NoError(t, err)
	require.ErrorIs(t, d.setUpAll(t.Context()), sandbox.ErrExist)
	require.NoError(t, d.down(t.Context()))
	require.Equal(t, []string{"make sandbox allocnet-demo-b"}, l.names(true))
	require.Equal(t, []string{
		"take a snapshot", "make an outside, linked to the host", "make sandbox allocnet-demo-a",
		"destroy sandbox allocnet-demo-a", "remove the outside", "compare the host",
	}, l.names(false))
	require.NoError(t, sandbox.Validate(inTheWay.Path()), "what was there before stays")
}

func TestCompareFindsWhatIsLeft(t *testing.T) {
	privhost.Require(t)
	var l log
	d := &demo{Options: Options{Config: configurator.Config{StateDir: t.TempDir()}}, steps: &steps{reporter: &l}}
	require.NoError(t, d.steps.do(t.Context(), "take a snapshot", d.snapshot))
	left, err := sandbox.Create("left")
	require.NoError(t, err)
	require.ErrorContains(t, d.down(t.Context()), "/run/netns/left")
	require.NoError(t, left.Destroy())
	require.NoError(t, d.down(t.Context()))
}

func TestServersAnswerFromTheirSandbox(t *testing.T) {
	privhost.Require(t)
	var l log
	d := &demo{steps: &steps{reporter: &l}}
	a := &allocation{id: "a"}
	var err error
	a.ns, err = sandbox.Create("a")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.ns.Destroy()) })
	require.NoError(t, d.serve(t.Context(), a))

	here, there := request{"host", nil, "127.0.0.1:8080", a}, request{"a", a.ns, "127.0.0.1:8080", a}
	got, err := there.send(t.Context())
	require.NoError(t, err)
	require.Equal(t, answer{"a", "127.0.0.1"}, *got)
	_, err = here.send(t.Context())
	require.Error(t, err, "the socket is not the host's")
	there.want = &allocation{id: "b"}
	_, err = there.send(t.Context())
	require.ErrorContains(t, err, `answered by "a", not by "b"`)

	require.NoError(t, d.steps.unwind(t.Context()))
	_, err = there.send(t.Context())
	require.Error(t, err)
}
