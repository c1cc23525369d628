package rtnl

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNeighbourLimit(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	fulls := func(table string, perCPU ...int) {
		t.Helper()
		text := "entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls\n"
		for _, n := range perCPU {
			text += fmt.Sprintf("00010000 0000189d 000018bc 00000006   000481cf 00000636 00000000   00000000         00000000         00000000         00000000       00000000            %08x\n", n)
		}
		write("net/stat/"+table, text)
	}
	l := &limits{root: root}
	again := func(ago time.Duration) error { l.looked = time.Now().Add(-ago); return l.check() }
	require.NoError(t, again(limitsTime), "what cannot be seen is no limit")

	write("sys/net/ipv4/neigh/default/gc_thresh3", "1024\n")
	write("sys/net/ipv6/neigh/default/gc_thresh3", "16\n")
	fulls("arp_cache", 0xa, 3)
	fulls("ndisc_cache", 7)
	require.NoError(t, again(limitsTime), "overflows of before the first look are over, and entries do not count")
	require.NoError(t, again(limitsTime))

	fulls("arp_cache", 0xb, 3)
	require.NoError(t, l.check(), "the answer serves for a while")
	err := again(limitsTime)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "net.ipv4.neigh.default.gc_thresh3 allows 1024 entries")
	require.NotContains(t, err.Error(), "ipv6")
	require.NoError(t, again(limitsTime), "it overflows no more")

	fulls("ndisc_cache", 8)
	require.ErrorContains(t, again(limitsTime), "net.ipv6.neigh.default.gc_thresh3")
	fulls("ndisc_cache", 9)
	require.NoError(t, again(2*limitsMemory), "it overflowed at some time since")
	for _, text := range []string{"entries\n00000010\n", "table_fulls\nxyz\n", "entries table_fulls\n00000010\n", ""} {
		write("net/stat/arp_cache", text)
		require.NoError(t, again(limitsTime), text)
	}
}
