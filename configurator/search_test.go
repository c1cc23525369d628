package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// TestIPTablesHangs: an iptables that hangs ends with Config.Timeout, in the plugins and in the
// searches for leftovers. What it may have left keeps its record, until it works again.
func TestIPTablesHangs(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0", `{"type":"portmap","backend":"iptables","capabilities":{"portMappings":true}}`)
	a, b := h.alloc("a"), h.alloc("b")
	a.Ports, b.Ports = []portmap.Port{{Value: 8080, To: 80}}, []portmap.Port{{Value: 8081, To: 80}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)

	path, programs := os.Getenv("PATH"), t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		require.NoError(t, os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
	}
	t.Setenv("PATH", programs+":"+path)
	cfg := h.cfg
	cfg.Network, cfg.Timeout, cfg.Retry.Attempts = "", 500*time.Millisecond, 1 // ADD reaches portmap, also on a busy host
	hasty := newConfigurator(t, cfg)
	require.ErrorIs(t, hasty.Teardown(t.Context(), a), context.DeadlineExceeded)
	_, err = hasty.Setup(t.Context(), b)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, hasty.Teardown(t.Context(), b), context.DeadlineExceeded)
	_, err = hasty.Audit(t.Context(), b)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = hasty.Force(t.Context(), a)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	t.Setenv("PATH", path)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), b))
	h.settle()
	require.Empty(t, leaseHolders(t, filepath.Join(leases, "net")))
	h.requireNoRecords()
}
