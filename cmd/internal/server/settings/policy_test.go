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

	own, shared := filepath.Join(dir, "own"), filepath.Join(dir, "shared")
	for _, d := range []string{own, shared} {
		require.NoError(t, os.Mkdir(d, 0o700))
		require.NoError(t, os.Symlink("../p.json", d+"/link.json"))
		require.NoError(t, os.Symlink(d+"/link.json", dir+"/to-"+filepath.Base(d)+".json"))
	}
	write("shared/p.json", "{}")
	require.NoError(t, os.Chmod(shared, 0o777))
	linked, err := load(`policy = ["` + dir + `/to-own.json"]`)
	require.NoError(t, err, "symlinks are followed")
	require.Equal(t, after.Configurator().Policy, linked.Configurator().Policy)
	require.NoError(t, os.Chmod(shared, 0o777|os.ModeSticky))
	_, err = load(`policy = ["` + shared + `/p.json"]`)
	require.NoError(t, err, "in a sticky directory, others cannot replace the file")
	require.NoError(t, os.Chmod(shared, 0o777))
	write("shared/d.hcl", "")
	_, err = Source{File: shared + "/d.hcl", Wary: true}.Load()
	require.ErrorContains(t, err, "can be replaced by other users", "the CNI plugin reads settings by the same rule")
	require.NoError(t, os.Symlink("shared", dir+"/alias"))
	_, err = Source{File: dir + "/alias/../own/link.json", Wary: true}.Load()
	require.ErrorContains(t, err, "Argument or block definition required", "it was read, over a symlink to a directory")
	require.NoError(t, os.Symlink("loop.json", dir+"/loop.json"))
	require.NoError(t, os.Chmod(write("open.json", "{}"), 0o666))
	for setting, want := range map[string]string{
		`policy = ["isolate"]`:                    `policy: "isolate" is neither the absolute path of a file nor a preset; the presets are isolated, egress-only`,
		`policy = ["isolated", "isolated"]`:       "occurs twice",
		`policy = ["isolated", "` + file + `"]`:   "give presets or one file",
		`policy = ["` + dir + `/none"]`:           "cannot be read",
		`policy = ["` + dir + `/open.json"]`:      "can be written by other users",
		`policy = ["` + shared + `/p.json"]`:      `can be replaced by other users, who can write "` + shared + `"`,
		`policy = ["` + shared + `/link.json"]`:   `can be replaced by other users, who can write "` + shared + `"`,
		`policy = ["` + dir + `/to-shared.json"]`: `can be replaced by other users, who can write "` + shared + `"`,
		`policy = ["` + dir + `/loop.json"]`:      "cannot be read",
		`policy = ["none", "isolated"]`:           `give "none" alone`,
		`policy = ["` + write("bad.json", `{"egress":{"rules":[{"peers":[{"cidr":"x"}]}]}}`) + `"]`: "egress.rules[0].peers[0].cidr",
	} {
		_, err := load(setting)
		require.ErrorContains(t, err, want, setting)
	}
}
