package demo

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// nowhere is a plugin directory that does not exist.
var nowhere = []string{"/nonexistent"}

func (l *log) detail(name string) string {
	for _, s := range l.ended {
		if s.Name == name {
			return s.Detail
		}
	}
	return ""
}

// TestRun runs the demo with each kind of engine. From the second run on,
// objects that all allocations share exist already.
func TestRun(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	reference, err := refplugins.Dir()
	require.NoError(t, err)
	const inside = "in this process: loopback, ptp, host-local, firewall, portmap, policy"
	for _, test := range []struct {
		name       string
		engine     configurator.Engine
		pluginDirs []string
		path       string // "" keeps the variable unchanged
		onHost     bool
		plugins    string
		iptables   string // regular expression
	}{
		{"without plugin binaries", configurator.EngineAuto, nowhere, "", true, inside, `^v\d`},
		{"without iptables", configurator.EngineNative, nowhere, "/nonexistent", false, inside, `^not installed, and not needed$`},
		{"with plugin binaries", configurator.EngineExec, []string{reference}, "", false,
			"as binaries: loopback, tuning, ptp, host-local, tuning, firewall, portmap", `^v\d`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.path != "" {
				t.Setenv("PATH", test.path)
			}
			var l log
			summary, err := Run(t.Context(), Options{
				Config: configurator.Config{Engine: test.engine, StateDir: t.TempDir(), PluginDirs: test.pluginDirs},
				OnHost: test.onHost, Reporter: &l,
			})
			require.NoError(t, err)
			require.True(t, summary.Clean)
			require.Equal(t, 14, summary.Requests)
			require.Len(t, summary.Setups, 2)
			require.Len(t, summary.Teardowns, 2)
			require.Len(t, l.ended, summary.Steps)
			require.Equal(t, test.plugins, l.detail("plugins"))
			require.Regexp(t, test.iptables, l.detail("iptables"))
			require.Regexp(t, test.iptables, l.detail("ip6tables"))
		})
	}
}

// TestBinariesNeedIPTables runs without plugin binaries and without iptables:
// every missing requirement is reported.
func TestBinariesNeedIPTables(t *testing.T) {
	privhost.Require(t)
	t.Setenv("PATH", "/nonexistent")
	var l log
	summary, err := Run(t.Context(), Options{
		Config: configurator.Config{Engine: configurator.EngineExec, StateDir: t.TempDir(), PluginDirs: nowhere}, Reporter: &l,
	})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrInterrupted, "it failed by itself")
	require.False(t, summary.Interrupted)
	require.Equal(t, []string{"plugins", "iptables", "ip6tables"}, l.names(true))
}

func TestWhoRuns(t *testing.T) {
	all := []string{"a", "b", "c"}
	require.Equal(t, "in this process: a, b, c", whoRuns(all, nil))
	require.Equal(t, "as binaries: a, b, c", whoRuns(all, all))
	require.Equal(t, "in this process: a, c; as binaries: b", whoRuns(all, []string{"b"}))
}

// interrupter cancels a demo when a step begins or ends.
type interrupter struct {
	log
	begin, end string
	cancel     func()
}

func (i *interrupter) Begin(section, name string) {
	i.log.Begin(section, name)
	if name == i.begin {
		i.cancel()
	}
}

func (i *interrupter) End(s Step) {
	i.log.End(s)
	if s.Name == i.end {
		i.cancel()
	}
}

// TestInterruptionIsTold interrupts the demo at several steps. Later steps are
// not begun, and what was set up is torn down.
func TestInterruptionIsTold(t *testing.T) {
	privhost.Require(t)
	const setUpA, destroyA = "set up allocnet-demo-a", "destroy sandbox allocnet-demo-a"
	for _, test := range []struct {
		begin, end string
		done       string // the last completed step
		undone     string // the first step that is undone, if any
	}{
		{begin: "plugins"},
		{end: "host ports", done: "host ports"},
		{begin: setUpA, done: "make sandbox allocnet-demo-b", undone: "tear down allocnet-demo-a"},
		{end: setUpA, done: setUpA, undone: "tear down allocnet-demo-b"},
		{end: "serve HTTP in allocnet-demo-a", done: "serve HTTP in allocnet-demo-a", undone: "stop the server in allocnet-demo-a"},
	} {
		t.Run(test.begin+test.end, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			i := &interrupter{begin: test.begin, end: test.end, cancel: cancel}
			summary, err := Run(ctx, Options{
				Config: configurator.Config{Engine: configurator.EngineNative, StateDir: t.TempDir(), PluginDirs: nowhere}, Reporter: i,
			})
			require.ErrorIs(t, err, ErrInterrupted)
			require.ErrorIs(t, err, context.Canceled)
			require.True(t, summary.Interrupted)
			require.True(t, summary.Clean, err)

			var up, down []string
			for _, s := range i.ended {
				switch {
				case s.Section == "Teardown":
					down = append(down, s.Name)
				case s.Err == nil:
					up = append(up, s.Name)
				}
			}
			if test.done == "" {
				require.Empty(t, up)
			} else {
				require.Equal(t, test.done, up[len(up)-1])
			}
			if test.undone == "" {
				require.Subset(t, []string{"compare the host"}, down)
				return
			}
			require.Equal(t, test.undone, down[0])
			require.Equal(t, []string{destroyA, "remove the outside", "compare the host"}, down[len(down)-3:])
		})
	}
}
