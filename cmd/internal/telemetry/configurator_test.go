package telemetry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// TestConfigurator observes a real configurator on a real host.
func TestConfigurator(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	conf, state, leases := filepath.Join(dir, "conf"), filepath.Join(dir, "state"), filepath.Join(dir, "leases")
	require.NoError(t, os.Mkdir(conf, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(conf, "net.conflist"), []byte(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[
		{"type":"bridge","bridge":"brtest","isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"subnet":"10.77.0.0/29"}}]}`, leases)), 0o600))
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("brtest"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	})
	to := newReceiver(t)
	records := record.Open(state)
	clock := newClock()
	exporter, err := newExporter(to.URL)
	require.NoError(t, err)
	var c *configurator.Configurator
	o := newTelemetry(Options{
		Pending:     func() int { return c.Pending() },
		Networks:    conflist.New(conf, nil).Networks,
		Allocations: func() (int, error) { ids, err := records.IDs(); return len(ids), err },
	}, exporter, clock.now)
	c, err = configurator.New(configurator.Config{
		ConfDir: conf, StateDir: state, Engine: configurator.EngineNative, Observer: o.Observer(), OnForced: o.OnForced,
	})
	require.NoError(t, err)

	var all []configurator.Allocation
	for i := range 5 { // as many as there are addresses
		s, err := sandbox.Create(fmt.Sprint("telemetry", i))
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Destroy() })
		all = append(all, configurator.Allocation{ID: fmt.Sprint("a", i), Netns: s.Path()})
		_, err = c.Setup(t.Context(), all[i])
		require.NoError(t, err)
	}
	full := []string{"allocations 5", `leases_free{family="ipv4",network="net"} 0`, `leases_used{family="ipv4",network="net"} 5`}
	require.Equal(t, full, append(o.series(t, "allocations"), o.series(t, "leases")...))
	all[0].Wait = true
	require.NoError(t, c.Teardown(t.Context(), all[0]))
	require.Equal(t, []string{
		`operations_total{engine="native",network="net",operation="setup",outcome="ok"} 5`,
		`operations_total{engine="native",network="net",operation="teardown",outcome="ok"} 1`,
	}, o.series(t, "operations_total"))
	clock.add(hostTime)
	require.Equal(t, []string{"allocations 4", `leases_free{family="ipv4",network="net"} 1`, `leases_used{family="ipv4",network="net"} 4`},
		append(o.series(t, "allocations"), o.series(t, "leases")...))
	require.NoError(t, o.Shutdown(t.Context()))
	setup := to.tree(nil, "")
	require.Contains(t, setup[0], "setup ")
	require.Contains(t, strings.Join(setup[:8], "\n"), "\n  add ")
	for _, a := range all[1:] {
		require.NoError(t, c.Teardown(t.Context(), a))
	}
	require.NoError(t, c.Close())
	clock.add(hostTime)
	require.Equal(t, []string{"removals_pending 0"}, o.series(t, "removals_pending"))
}
