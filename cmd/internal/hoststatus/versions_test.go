package hoststatus

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestVersions: a program that fails or hangs is not one that is missing.
func TestVersions(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	script := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	script("nft", "echo nftables v9.8.7 'in a test'; echo more")
	script("iptables", "echo cannot read the tables >&2; echo more >&2; exit 3")
	v, problems := versions(t.Context())
	require.NotEmpty(t, v.Kernel)
	require.Equal(t, "v9.8.7 in a test", v.NFT)
	require.Equal(t, "unknown", v.IPTables)
	require.Equal(t, []string{`iptables is installed, but "` + dir + `/iptables --version" failed: exit status 3: cannot read the tables`}, problems)

	script("iptables", "exec sleep 600")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	v, problems = versions(ctx)
	require.Equal(t, "unknown", v.IPTables)
	require.Len(t, problems, 1)
	require.Equal(t, "v9.8.7 in a test", v.NFT)
	require.Contains(t, problems[0], `iptables --version" gave no answer for `)

	t.Setenv("PATH", t.TempDir())
	v, problems = versions(t.Context())
	require.Empty(t, v.NFT+v.IPTables)
	require.Empty(t, problems)
}
