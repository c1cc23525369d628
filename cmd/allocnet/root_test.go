package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
)

func TestUsageErrors(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"command":          {[]string{"bogus"}, `unknown command "bogus"`},
		"flag":             {[]string{"ls", "--bogus"}, "unknown flag: --bogus"},
		"flag value":       {[]string{"ls", "--timeout", "soon"}, `invalid argument "soon"`},
		"log level":        {[]string{"ls", "--log-level", "loud"}, `--log-level "loud": must be one of`},
		"no ID":            {[]string{"setup"}, "give the ID of one allocation, not 0 arguments"},
		"two IDs":          {[]string{"check", "a", "b"}, "not 2 arguments"},
		"surplus argument": {[]string{"ls", "a"}, `unknown command "a"`},
		"subnet":           {[]string{"ls", "--subnet", "10.0.0.0"}, `--subnet "10.0.0.0": must be an address with a prefix length`},
		"subnet bits":      {[]string{"ls", "--subnet", "10.0.0.1/8"}, "has host bits set"},
		"port":             {[]string{"setup", "a", "--port", "http"}, "--port: parse port"},
		"arg":              {[]string{"setup", "a", "--arg", "=v"}, `--arg "=v": must be KEY=VALUE`},
		"bandwidth":        {[]string{"setup", "a", "--bandwidth", "10M"}, "--bandwidth: "},
		"ID":               {[]string{"setup", "a/b"}, `ID "a/b"`},
		"ID to check":      {[]string{"check", ".."}, `ID ".."`},
		"ID to clean":      {[]string{"cleanup", "--audit", "a/b"}, `ID "a/b"`},
		"live ID":          {[]string{"gc", "--live", "a/b"}, `ID "a/b"`},
		"netns":            {[]string{"setup", "a", "--netns", dir}, "not a network namespace"},
		"create elsewhere": {[]string{"setup", "a", "--create", "--netns", dir + "/a"}, "can only be made in /run/netns"},
		"gc of what":       {[]string{"gc"}, "live live-from none"},
		"gc of nothing":    {[]string{"gc", "--live-from", "/dev/null"}, "say so with --none"},
		"gc contradiction": {[]string{"gc", "--live", "a", "--none"}, "none of the others can be"},
		"gc file":          {[]string{"gc", "--live-from", dir + "/no"}, "--live-from: open"},
		"cleanup how":      {[]string{"cleanup"}, "audit force"},
		"cleanup both":     {[]string{"cleanup", "--audit", "--force"}, "none of the others can be"},
		"demo subnet":      {[]string{"demo", "--subnet", "x"}, `--subnet "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			args := append(test.args, "--state-dir", filepath.Join(dir, "state"), "--conf-dir", dir)
			got := runWith("", args...)
			require.Equal(t, exitUsage, got.code, got.errOut)
			require.Regexp(t, "(?s)^error: .*\nhint: ", got.errOut)
			require.Contains(t, got.errOut, test.want)
			require.Empty(t, got.out)

			report := runWith("", append(args, "--json")...).failure(t, exitUsage)
			require.Contains(t, report.Error, test.want)
			require.NotEmpty(t, report.Hint)
		})
	}
}

func TestUsageHintNamesTheCommand(t *testing.T) {
	got := runWith("", "gc", "--bogus")
	require.Contains(t, got.errOut, "hint: usage: allocnet gc (--live ID... | --live-from FILE | --none) [flags]; `allocnet gc --help` tells more")
}

func TestHelp(t *testing.T) {
	help := runWith("", "--help").ok(t)
	for _, want := range []string{
		"0  it is done", "1  it failed", "2  the command line", "3  the answer is no", "ALLOCNET_STATE_DIR", "NO_COLOR",
		"setup", "teardown", "check", "ls", "inspect", "gc", "networks", "cleanup", "demo", "version", "completion",
	} {
		require.Contains(t, help, want)
	}
}

func TestEnvironment(t *testing.T) {
	w := newWorld(t)
	t.Setenv("ALLOCNET_STATE_DIR", w.path("state"))
	t.Setenv("ALLOCNET_CONF_DIR", w.path("conf"))
	require.Contains(t, runWith("", "networks").ok(t), "front")

	t.Setenv("ALLOCNET_JSON", "true")
	require.JSONEq(t, "[]", runWith("", "ls").ok(t))

	t.Setenv("ALLOCNET_TIMEOUT", "soon")
	report := runWith("", "ls", "--json").failure(t, exitUsage)
	require.Contains(t, report.Error, "environment variable ALLOCNET_TIMEOUT")
	runWith("", "ls", "--timeout", "1s").ok(t)
}

func TestConfig(t *testing.T) {
	t.Setenv("ALLOCNET_PLUGIN_DIR", "/a:/b")
	t.Setenv("ALLOCNET_NETWORK", "front,back")
	a := parsedApp(t, "--subnet", "10.1.0.0/16", "--subnet", "fd00::/64", "--timeout", "7s", "--state-dir", "s")
	cfg, err := a.config()
	require.NoError(t, err)
	require.Equal(t, []string{"/a", "/b"}, cfg.PluginDirs)
	require.Equal(t, []string{"front", "back"}, cfg.Networks)
	require.Len(t, cfg.Subnets, 2)
	require.Equal(t, 7*time.Second, cfg.Timeout)
	require.True(t, filepath.IsAbs(cfg.StateDir), cfg.StateDir)
	require.Equal(t, configurator.DefaultConfDir, cfg.ConfDir)

	a = parsedApp(t, "--plugin-dir", "/c", "--network", "other")
	cfg, err = a.config()
	require.NoError(t, err)
	require.Equal(t, []string{"/c"}, cfg.PluginDirs)
	require.Equal(t, []string{"other"}, cfg.Networks)
}

// parsedApp is an app whose global flags were read.
func parsedApp(t *testing.T, args ...string) *app {
	t.Helper()
	a := newApp(nil, nil, nil)
	root := newRoot(a)
	require.NoError(t, root.ParseFlags(args))
	require.NoError(t, a.prepare(root, nil))
	return a
}

func TestPluginDirsBesideTheProgram(t *testing.T) {
	require.Nil(t, pluginDirsBeside("/nonexistent/allocnet"))
	dir := t.TempDir()
	require.Nil(t, pluginDirsBeside(filepath.Join(dir, "allocnet")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "cni"), 0o755))
	want := []string{filepath.Join(dir, "cni"), "/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
	require.Equal(t, want, pluginDirsBeside(filepath.Join(dir, "allocnet")))

	t.Setenv("CNI_PATH", "/x")
	require.Nil(t, newApp(nil, nil, nil).pluginDirs(), "the library reads CNI_PATH")
}
