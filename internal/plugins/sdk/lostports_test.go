package sdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// lostPorts is a host with links that stand for bridge ports of plugin binaries. Only their group
// matters.
type lostPorts struct {
	*Host
	t *testing.T
}

func newLostPorts(t *testing.T) *lostPorts {
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	host, err := OpenHost(hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	return &lostPorts{host, t}
}

// make makes ports without elements.
func (l *lostPorts) make(ports ...string) {
	for _, name := range ports {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, Group: names.DropInPortGroup}}
		require.NoError(l.t, netlink.LinkAdd(link))
		l.t.Cleanup(func() { require.NoError(l.t, netlink.LinkDel(link)) })
	}
}

func (l *lostPorts) group(port string) uint32 {
	link, err := netlink.LinkByName(port)
	require.NoError(l.t, err)
	return link.Attrs().Group
}

func (l *lostPorts) elements(port string) *ruleset.Elements {
	return &ruleset.Elements{
		Owner: names.Owner{Network: "net", ID: port, IfName: "eth0"},
		Ports: []ruleset.BridgePort{{Name: port, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}},
	}
}

// TestReleasedAroundTheTable: each operation that makes the table of the guard releases ports before that, and those
// of ADDs that have ended meanwhile after it.
func TestReleasedAroundTheTable(t *testing.T) {
	for name, makeTable := range map[string]func(*lostPorts) error{
		"Guard": func(l *lostPorts) error { return l.Rules.Guard(t.Context(), ruleset.Bridge) },
		"Restore": func(l *lostPorts) error {
			_, err := l.Rules.Restore(t.Context(), []*ruleset.Elements{l.elements("other")})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLostPorts(t)
			l.make("early")
			var missing []bool
			l.Rules.PortsLost(func(ctx context.Context) error {
				missing = append(missing, errors.Is(l.Rules.CheckGuard(ctx, ruleset.Bridge), ruleset.ErrMissing))
				err := releaseLostPorts(ctx, l.Kernel, l.Rules, l.Log)
				if len(missing) == 1 {
					require.Equal(t, uint32(names.ReleasedPortGroup), l.group("early"))
					l.make("late")
				}
				return err
			})
			require.NoError(t, makeTable(l))
			require.Equal(t, []bool{true, false}, missing)
			require.Equal(t, uint32(names.ReleasedPortGroup), l.group("late"))
		})
	}
}

// TestNoTableWithoutARelease: without a release there is no table, which would close the ports.
func TestNoTableWithoutARelease(t *testing.T) {
	l := newLostPorts(t)
	no := errors.New("no")
	l.Rules.PortsLost(func(context.Context) error { return no })
	require.ErrorIs(t, l.Rules.Guard(t.Context(), ruleset.Bridge), no)
	require.ErrorIs(t, l.Rules.CheckGuard(t.Context(), ruleset.Bridge), ruleset.ErrMissing)
}

// TestCompletedWhileReleased: a port that gets its elements while ports are released stays a guarded one.
func TestCompletedWhileReleased(t *testing.T) {
	l := newLostPorts(t)
	require.NoError(t, l.Rules.Guard(t.Context(), ruleset.Bridge))
	const last = "port29"
	for i := range 30 { // to move them takes longer than to add elements
		l.make(fmt.Sprintf("port%02d", i))
	}
	kept := func() bool {
		added := make(chan error, 1)
		go func() {
			for l.group("port00") != names.ReleasedPortGroup {
			}
			added <- l.Rules.Add(t.Context(), l.elements(last))
		}()
		require.NoError(t, releaseLostPorts(t.Context(), l.Kernel, l.Rules, l.Log))
		require.NoError(t, <-added)
		require.Equal(t, uint32(names.ReleasedPortGroup), l.group("port28"))
		if l.group(last) == names.DropInPortGroup {
			return true
		}
		require.NoError(t, l.Rules.Del(t.Context(), l.elements(last)))
		released, err := l.Kernel.LinksOfGroup(names.ReleasedPortGroup)
		require.NoError(t, err)
		require.NoError(t, moveLinks(l.Kernel, released, names.DropInPortGroup))
		return false
	}
	for try := 0; !kept(); try++ {
		require.Less(t, try, 1000, "the port is never kept")
	}
}
