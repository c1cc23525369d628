package settings

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/policy"
)

// TestPolicy reads the policy of the embedded network from presets and from a file.
func TestPolicy(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	load := func(setting string) (Settings, error) {
		return Source{File: write("d.hcl", setting)}.Load()
	}
	s, err := load(`policy = ["egress-only", "no-metadata"]`)
	require.NoError(t, err)
	require.Equal(t, &policy.Policy{Presets: []policy.Preset{policy.EgressOnly, policy.NoMetadata}}, s.Configurator().Policy)
	s, err = load("")
	require.NoError(t, err)
	require.Nil(t, s.Configurator().Policy)

	s, err = load(``)
	require.NoError(t, err)
	require.Nil(t, s.Configurator().Policy, "the default is the library's")
	s, err = load(`policy = ["none"]`)
	require.NoError(t, err)
	require.Equal(t, &policy.Policy{}, s.Configurator().Policy)
	_, err = load("engine = \"exec\"\npolicy = [\"none\"]")
	require.NoError(t, err)

	file := write("p.json", `{"presets":["no-private"],"egress":{"default":"deny"}}`)
	before, err := load(`policy = ["` + file + `"]`)
	require.NoError(t, err)
	require.Equal(t, policy.Deny, before.Configurator().Policy.Egress.Default)
	write("p.json", `{"presets":["isolated"]}`)
	after, err := load(`policy = ["` + file + `"]`)
	require.NoError(t, err)
	require.NotEqual(t, before.Configurator(), after.Configurator(), "a reload makes the content of the file active")

	require.NoError(t, os.Chmod(write("open.json", "{}"), 0o666))
	for setting, want := range map[string]string{
		`policy = ["isolate"]`:                  `policy: "isolate" is neither the absolute path of a file nor a preset; the presets are isolated, egress-only`,
		`policy = ["none", "isolated"]`:         `give "none" alone`,
		`policy = ["isolated", "isolated"]`:     "occurs twice",
		`policy = ["isolated", "` + file + `"]`: "give presets or one file",
		`policy = ["` + dir + `/none"]`:         "cannot be read",
		`policy = ["` + dir + `/open.json"]`:    "can be written by other users",
		`policy = ["` + write("bad.json", `{"egress":{"rules":[{"peers":[{"cidr":"x"}]}]}}`) + `"]`: "egress.rules[0].peers[0].cidr",
	} {
		_, err := load(setting)
		require.ErrorContains(t, err, want, setting)
	}
}
