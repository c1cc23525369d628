package builtin_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// asDropIn makes the test run the plugins as the binaries do, with a Host of its own for each call. It returns
// what they log.
func (g *guardTest) asDropIn() (log *strings.Builder) {
	log = &strings.Builder{}
	recorded := g.native
	g.native = &runner{t: g.t, name: "drop-in", exec: recorded.exec}
	g.native.answer = func(ctx context.Context, plugin string, conf []byte, environ []string) ([]byte, error) {
		host, err := sdk.OpenHost(hclog.New(&hclog.LoggerOptions{Output: log}))
		require.NoError(g.t, err)
		defer func() { require.NoError(g.t, host.Close()) }()
		exec := &sdk.Exec{Plugins: builtin.DropIns, Host: host, Binary: &pluginexec.Exec{}, Lenient: true}
		defer exec.Close()
		return exec.Answer(ctx, plugin, conf, environ)
	}
	return log
}

func groupOf(t *testing.T, port string) string {
	t.Helper()
	group, err := os.ReadFile("/sys/class/net/" + port + "/netdev_group")
	require.NoError(t, err)
	return strings.TrimSpace(string(group))
}

// TestDropInAfterFlush: after a flush of the ruleset, the next ADD on any bridge makes the guard again.
// Containers of plugin binaries, which no record restores, keep their connectivity without the guard.
// Others are closed until their repair. CHECK tells about the former, and the next ADD guards again.
func TestDropInAfterFlush(t *testing.T) {
	for _, bridge := range []string{"br0", "br1"} {
		t.Run(bridge, func(t *testing.T) {
			g, conf := newGuardTest(t), guardedBridge()
			recorded := g.native
			log := g.asDropIn()
			a, result, out := g.add("dropped", conf)
			own, port := stationOf(t, result), hostEnd(result)
			frames := framesOf(own, g.neighbour)
			require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
			require.NoError(t, g.run("CHECK", a, conf, result))
			require.Empty(t, log.String(), "nothing was lost yet")

			privhost.FlushRuleset(t)
			other := with(conf, "bridge", bridge)
			if bridge != "br0" {
				other["name"], other["ipam"] = "other", hostLocal("10.8.0.0/24", "fd00:8::/64")
				t.Cleanup(func() { output(t, "ip", "link", "del", bridge) })
			}
			b := sandboxed(t, "later")
			later := g.native.add(b, other)
			t.Cleanup(func() { _, _ = g.native.run("DEL", b, withResult(t, other, later)) })
			require.Equal(t, fmt.Sprint(names.DropInPortGroup), groupOf(t, hostEnd(later)))
			require.NoError(t, g.run("CHECK", b, other, later))
			require.Contains(t, log.String(), port+" of allocnet:net/dropped/eth0")
			require.NotContains(t, log.String(), hostEnd(later))
			require.NoError(t, g.repair())
			own4 := framesOf(own, g.neighbour)[3:4]
			require.Equal(t, named(own4, true), arrived(t, out, g.in, own4))

			err := g.run("CHECK", a, conf, result)
			require.ErrorContains(t, err, "the source guard of port \""+port+"\" has ended")
			require.ErrorContains(t, err, "MAC "+own.mac.String()+" of bridge port")
			require.NoError(t, g.run("DEL", a, conf, result))
			again := g.native.add(a, conf)
			require.NoError(t, g.run("CHECK", a, conf, again))
			out = openPackets(t, a.netns)
			awaitCarrier(t, a, conf)
			frames = framesOf(stationOf(t, again), g.neighbour)
			require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
			require.NoError(t, g.run("DEL", a, conf, again))
			g.native = recorded
		})
	}
}

// TestRecordedAfterFlush: the port of an attachment that has a record is not released.
func TestRecordedAfterFlush(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	a, result, _ := g.add("recorded", conf)
	privhost.FlushRuleset(t)
	log := g.asDropIn()
	b := sandboxed(t, "dropped")
	dropped := g.native.add(b, conf)
	require.Equal(t, fmt.Sprint(names.GuardedPortGroup), groupOf(t, hostEnd(result)))
	require.Empty(t, log.String())
	require.NoError(t, g.run("DEL", b, conf, dropped))
	require.NoError(t, g.run("DEL", a, conf, result))
}

// TestFlushDuringDropInAdd: another program flushes the ruleset, and another process makes the guard again,
// between an ADD's elements and its end. Then the port has its elements, or it was released later.
func TestFlushDuringDropInAdd(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	host := g.native.exec.Host
	g.asDropIn()
	owner := names.Owner{Network: "net", ID: "raced", IfName: "eth0"}
	port := owner.Veth()
	flushed := func() error {
		for {
			if _, err := os.Stat("/sys/class/net/" + port); err == nil {
				break
			}
		}
		c, err := nftables.New()
		if err == nil {
			c.FlushRuleset()
			err = c.Flush()
		}
		if err != nil {
			return err
		}
		return host.Rules.Guard(t.Context(), ruleset.Bridge)
	}
	a, kept := sandboxed(t, "raced"), 0
	for try := 0; kept < 3 && try < 100; try++ {
		done := make(chan error, 1)
		go func() { done <- flushed() }()
		result := g.native.add(a, conf)
		require.NoError(t, <-done)
		complete, err := host.Rules.PortsWithMAC(t.Context())
		require.NoError(t, err)
		switch groupOf(t, port) {
		case fmt.Sprint(names.DropInPortGroup):
			require.True(t, complete[port], "the port is closed for good")
			kept++
		case fmt.Sprint(names.ReleasedPortGroup):
			require.False(t, complete[port])
		default:
			t.Fatalf("port in group %s", groupOf(t, port))
		}
		require.NoError(t, g.run("DEL", a, conf, result))
	}
	require.Positive(t, kept, "the flush came too late each time")
}
