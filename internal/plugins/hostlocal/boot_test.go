package hostlocal

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
)

// nativeInBoot is native in a boot of the host. An empty ID stands for one that cannot be
// read.
func nativeInBoot(t testing.TB, boot string, c call, dir string) (string, error) {
	t.Helper()
	host := &sdk.Host{Log: hclog.NewNullLogger(), Boot: func() (string, error) {
		if boot == "" {
			return "", errors.New("no boot ID")
		}
		return boot, nil
	}}
	e := &sdk.Exec{Plugins: map[string]sdk.Factory{"host-local": New}, Host: host}
	return plugintest.Native(t, e, "host-local", strings.ReplaceAll(c.conf, "DATA", dir), c.environ())
}

const bootConf = `{"cniVersion": "1.1.0", "name": "net", "type": "test", "ipam": {"type": "host-local",
	"dataDir": "DATA", "ranges": [[{"subnet": "10.7.0.0/29"}]], "reclaimOnBoot": OPTED}}`

// TestReclaimOnBoot: a network that opts in gets the addresses of an earlier boot back, and
// its containers theirs. The leases of other programs stay.
func TestReclaimOnBoot(t *testing.T) {
	for opted, want := range map[string]bool{"true": true, "false": false} {
		t.Run(opted, func(t *testing.T) {
			dir := t.TempDir()
			conf := strings.ReplaceAll(bootConf, "OPTED", opted)
			_, err := binary(t, call{"ADD", "podman", "", conf}, dir)
			require.NoError(t, err)
			for _, id := range []string{"a", "b", "c", "d"} {
				_, err = nativeInBoot(t, "one", call{"ADD", id, "", conf}, dir)
				require.NoError(t, err)
			}
			_, err = nativeInBoot(t, "one", call{"STATUS", "", "", conf}, dir)
			require.Error(t, err, "no address is free")

			_, err = nativeInBoot(t, "two", call{"STATUS", "", "", conf}, dir)
			require.Equal(t, want, err == nil, "%v", err)
			out, err := nativeInBoot(t, "two", call{"ADD", "b", "", conf}, dir)
			require.Equal(t, want, err == nil, "%v", err)
			if want {
				require.Contains(t, out, `"10.7.0.4/29"`, "its address of the earlier boot")
				held := leases(t, dir)
				require.Equal(t, "podman\r\neth0", held["net/10.7.0.2"])
				require.Equal(t, "b\r\neth0", held["net/10.7.0.4"])
				require.NotContains(t, held, "net/10.7.0.3")
			}
			require.Equal(t, want, hasFormer(dir))
		})
	}
}

func hasFormer(dir string) bool {
	_, err := os.Stat(dir + "/.allocnet/.former/net")
	return err == nil
}

// TestUnknownBoot: without a boot ID, a network that opts in leases nothing, because it could
// not reclaim that. DEL works.
func TestUnknownBoot(t *testing.T) {
	dir := t.TempDir()
	conf := strings.ReplaceAll(bootConf, "OPTED", "true")
	_, err := nativeInBoot(t, "", call{"ADD", "a", "", conf}, dir)
	require.ErrorContains(t, err, "no boot ID")
	_, err = nativeInBoot(t, "", call{"STATUS", "", "", conf}, dir)
	require.ErrorContains(t, err, "no boot ID")
	_, err = nativeInBoot(t, "one", call{"ADD", "a", "", conf}, dir)
	require.NoError(t, err)
	_, err = nativeInBoot(t, "", call{"DEL", "a", "", conf}, dir)
	require.NoError(t, err)
	require.NotContains(t, leases(t, dir), "net/10.7.0.2")
}
