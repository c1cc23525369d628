package hostlocal

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
)

// A call is one operation as both implementations get it. DATA in the
// configuration is replaced by the directory of the leases.
type call struct {
	command, id, args, conf string
}

func (c call) environ() []string {
	env := []string{"CNI_COMMAND=" + c.command, "CNI_PATH=/none"}
	if c.command == "STATUS" || c.command == "GC" {
		return env
	}
	return append(env, "CNI_CONTAINERID="+c.id, "CNI_IFNAME=eth0", "CNI_NETNS=/none", "CNI_NETNS_OVERRIDE=1",
		"CNI_ARGS="+c.args)
}

// native runs a call in-process.
func native(t testing.TB, c call, dir string) (string, error) {
	t.Helper()
	e := &sdk.Exec{
		Plugins: map[string]sdk.Factory{"host-local": New},
		Host:    &sdk.Host{Log: hclog.NewNullLogger()},
		Lenient: true,
	}
	return plugintest.Native(t, e, "host-local", strings.ReplaceAll(c.conf, "DATA", dir), c.environ())
}

// binary runs a call with the reference plugin.
func binary(t testing.TB, c call, dir string) (string, error) {
	t.Helper()
	return plugintest.Reference(t, "host-local", strings.ReplaceAll(c.conf, "DATA", dir), c.environ())
}

// leases returns the content of the directory without the index.
func leases(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if err == nil && entry.Name() == ".allocnet" {
				return filepath.SkipDir
			}
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(content)
		return err
	})
	require.NoError(t, err)
	return files
}
