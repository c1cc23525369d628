package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/portmap"
)

// TestForwardingNotChecked: if iptables cannot say whether a rule exists, or hangs, an allocation was not
// checked. It is not repaired and not set up again.
func TestForwardingNotChecked(t *testing.T) {
	h := newTestHost(t, func(c *Config) {
		c.Engine = EngineExec
		c.PluginDirs = []string{filepath.Dir(refplugins.Path(t, "bridge"))}
	})
	h.file("10-net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[
		{"type":"bridge","bridge":"fwd0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.89.0.0/24","dataDir":"`+h.dir+`/leases"}},
		{"type":"portmap","capabilities":{"portMappings":true}},
		{"type":"firewall","iptablesAdminChainName":"`+iptables.AdminChain+`"}]}`)
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("fwd0"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
		privhost.FlushRuleset(t)
	})
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	status, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))

	path := os.Getenv("PATH")
	for name, script := range map[string]string{"fails": "echo 'Resource temporarily unavailable' >&2; exit 4", "hangs": "exec sleep 600"} {
		t.Run(name, func(t *testing.T) {
			programs := t.TempDir()
			for _, program := range []string{"iptables", "ip6tables"} {
				require.NoError(t, os.WriteFile(filepath.Join(programs, program), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
			}
			t.Setenv("PATH", programs+":"+path)
			cfg := h.cfg
			cfg.Network, cfg.Timeout, cfg.Retry.Attempts = "", 500*time.Millisecond, 1
			c := newConfigurator(t, cfg)
			err := c.Check(context.Background(), a)
			require.ErrorIs(t, err, ErrNotChecked)
			require.NotErrorIs(t, err, ErrUnhealthy)
			_, err = c.Setup(context.Background(), a)
			require.ErrorIs(t, err, ErrNotChecked)
		})
	}
	require.NoError(t, h.Check(t.Context(), a))
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, status.Address, again.Address)
	require.NoError(t, h.Teardown(t.Context(), a))
}
