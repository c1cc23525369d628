package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
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
		"engine":           {[]string{"ls", "--engine", "magic"}, `invalid argument "magic" for "--engine" flag: must be one of auto, exec, native`},
		"plugins command":  {[]string{"plugins", "bogus"}, `unknown command "bogus" for "allocnet plugins"`},
		"plugins how many": {[]string{"plugins", "install"}, "give a plugin directory, like /opt/cni/bin"},
		"plugins where":    {[]string{"plugins", "install", dir + "/no"}, "does not exist"},
		"plugins in file":  {[]string{"plugins", "uninstall", "/dev/null"}, "is not a directory"},
		"plugins of what":  {[]string{"plugins", "install", dir, "--program", dir + "/no"}, `program "` + dir + `/no" does not exist`},
		"plugins of text":  {[]string{"plugins", "install", dir, "--program", "/etc/passwd"}, `program "/etc/passwd" is not an executable file`},
		"plugins of dir":   {[]string{"plugins", "install", dir, "--program", dir}, "is not an executable file"},
		"repair of one":    {[]string{"repair", "web"}, `unexpected argument "web": allocnet repair takes no arguments`},
		"no ID":            {[]string{"setup"}, "give the ID of one allocation, not 0 arguments"},
		"two IDs":          {[]string{"check", "a", "b"}, "not 2 arguments"},
		"surplus argument": {[]string{"ls", "a"}, `unexpected argument "a": allocnet ls takes no arguments`},
		"plugins list":     {[]string{"plugins", "list", "a"}, `unexpected argument "a": allocnet plugins list takes no arguments`},
		"help topic's":     {[]string{"help", "ready", "foo"}, `unknown command "foo" for "allocnet ready"`},
		"subnet":           {[]string{"ready", "--subnet", "10.0.0.0"}, `--subnet "10.0.0.0": must be an address with a prefix length`},
		"subnet bits":      {[]string{"ready", "--subnet", "10.0.0.1/8"}, "has host bits set"},
		"port":             {[]string{"setup", "a", "--port", "http"}, "--port: parse port"},
		"arg":              {[]string{"setup", "a", "--arg", "=v"}, `--arg "=v": must be KEY=VALUE`},
		"bandwidth":        {[]string{"setup", "a", "--bandwidth", "10M"}, "--bandwidth: "},
		"ID":               {[]string{"setup", "a/b"}, `ID "a/b"`},
		"ID to check":      {[]string{"check", ".."}, `ID ".."`},
		"ID to clean":      {[]string{"cleanup", "--audit", "a/b"}, `ID "a/b"`},
		"live ID":          {[]string{"gc", "--live", "a/b"}, `ID "a/b"`},
		"long ID":          {[]string{"setup", strings.Repeat("a", 10000), "--create"}, "has 10000 characters"},
		"dns server":       {[]string{"setup", "a", "--dns-server", "10.0.0.1,notanip"}, `--dns-server "notanip": must be an IP address`},
		"help topic":       {[]string{"help", "nope"}, `unknown command "nope"`},
		"help subtopic":    {[]string{"help", "setup", "nope"}, `unknown command "nope" for "allocnet setup"`},
		"shell":            {[]string{"completion", "nope"}, `unknown command "nope" for "allocnet completion"`},
		"audit or destroy": {[]string{"cleanup", "--audit", "--destroy"}, "none of the others can be"},
		"netns":            {[]string{"setup", "a", "--netns", dir}, "not a network namespace"},
		"create elsewhere": {[]string{"setup", "a", "--create", "--netns", dir + "/a"}, "can only be made in /run/netns"},
		"gc of what":       {[]string{"gc"}, "live live-from none"},
		"gc of nothing":    {[]string{"gc", "--live-from", "/dev/null"}, "pass --none"},
		"gc contradiction": {[]string{"gc", "--live", "a", "--none"}, "none of the others can be"},
		"gc file":          {[]string{"gc", "--live-from", dir + "/no"}, "--live-from: open"},
		"cleanup how":      {[]string{"cleanup"}, "audit force"},
		"cleanup both":     {[]string{"cleanup", "--audit", "--force"}, "none of the others can be"},
		"demo subnet":      {[]string{"demo", "--subnet", "x"}, `--subnet "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			args := withAccepted(test.args, []string{"--state-dir", filepath.Join(dir, "state"), "--conf-dir", dir})
			got := runWith("", args...)
			require.Equal(t, exitUsage, got.code, got.errOut)
			require.Regexp(t, "(?s)^error: .*\nhint: ", got.errOut)
			require.Contains(t, got.errOut, test.want)
			require.Empty(t, got.out)

			report := runWith("", append(args, "--json")...).failure(t, exitUsage)
			require.Contains(t, report.Error, test.want)
			require.NotEmpty(t, report.Hint)
			require.Equal(t, "invalid", report.Kind)
		})
	}
}

// TestBadIDs: an invalid ID is refused before anything is derived from it.
func TestBadIDs(t *testing.T) {
	w := newWorkspace(t)
	for _, id := range []string{"a/b", "..", "", strings.Repeat("a", 10000), "-"} {
		for _, command := range [][]string{
			{"setup", "--create"}, {"setup"}, {"teardown", "--destroy"}, {"check"}, {"inspect"}, {"cleanup", "--audit"}, {"cleanup", "--force"},
			{"gc", "--live", id},
		} {
			args := append(command, w.flags()...)
			if command[0] != "gc" {
				args = append(args, "--", id)
			}
			if command[0] == "gc" && id == "" {
				continue // no live allocation is named
			}
			got := runWith("", args...)
			require.Equal(t, exitUsage, got.code, got.errOut)
			if id == "" {
				require.Contains(t, got.errOut, "is empty: pass an ID or a name", args)
			} else {
				require.Contains(t, got.errOut, "error: invalid allocation: ID ", args)
			}
			require.NotContains(t, got.errOut, "netns", args)
			require.Less(t, len(got.errOut), 500, args)
		}
	}
}

func TestUsageHintNamesTheCommand(t *testing.T) {
	got := runWith("", "gc", "--bogus")
	require.Contains(t, got.errOut, "hint: usage: allocnet gc (--live ID... | --live-from FILE | --none) [flags]; `allocnet gc --help` explains the flags")
}

// TestHelp: the first screen has all commands in 30 lines, and leads to the topics.
func TestHelp(t *testing.T) {
	help := runWith("", "--help").ok(t)
	require.Equal(t, help, runWith("").ok(t))
	require.Equal(t, help, runWith("", "help").ok(t))
	lines := strings.Split(strings.TrimSpace(help), "\n")
	require.LessOrEqual(t, len(lines), 30, help)
	for _, line := range lines {
		require.LessOrEqual(t, len(line), 80, line)
	}
	for _, c := range newRoot(newApp(nil, nil, nil)).Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			require.Regexp(t, `\b`+c.Name()+`\b`, help)
		}
	}
	require.Regexp(t, `(?s)networks:\n  setup .*what is wrong:\n  status .*\n  doctor .*clean up:\n  repair .*\nOthers: policy, demo, .*completion.*\n`, help)
	require.Regexp(t, `allocnet help flags\|kinds\|ids\|daemon\|engines\n$`, help)
}

func TestHelpTopics(t *testing.T) {
	for topic, wanted := range map[string][]string{
		"flags":   {"ALLOCNET_STATE_DIR", "NO_COLOR", "--conf-dir string", "--json "},
		"kinds":   {"0  success", "1  failure", "2  the command line", "3  unhealthy", `"kind" for programs`, kindsHelp()},
		"ids":     {"the first 12 or more hexadecimal"},
		"daemon":  {"without a daemon, this process"},
		"engines": {"With --engine auto", "/opt/cni/bin"},
	} {
		help := runWith("", "help", topic).ok(t)
		for _, want := range wanted {
			require.Contains(t, help, want)
		}
		require.Equal(t, help, runWith("", topic).ok(t))
		require.Contains(t, runWith("", "__complete", "help", topic[:2]).ok(t), topic)
	}
}

func TestHelpOfACommand(t *testing.T) {
	require.Equal(t, runWith("", "setup", "--help").ok(t), runWith("", "help", "setup").ok(t))
	require.Contains(t, runWith("", "help", "completion", "bash").ok(t), "bash")
	require.Contains(t, runWith("", "completion").ok(t), "fish")
	require.Contains(t, runWith("").ok(t), "Connect network namespaces to CNI networks")
	for command, want := range map[string]string{
		"check": "the network is not as it was set up, or no allocation has this ID", "inspect": "no allocation is set up", "cleanup": "leftovers were found",
		"repair": "an allocation is broken",
	} {
		help := runWith("", command, "--help").ok(t)
		_, exits, _ := strings.Cut(help, "\nExit codes:\n")
		require.Regexp(t, "(?s)^  0 .*\n  1 .*\n  2 .*\n  3  "+want+"[^\n]*\n$", exits, command)
	}
	for _, command := range []string{"setup", "teardown", "ls", "gc", "networks", "plugins", "demo", "bench", "version"} {
		require.NotContains(t, runWith("", command, "--help").ok(t), "Exit codes:", command)
	}
	require.Contains(t, runWith("", "setup", "--help").ok(t), "If the\nmessage says that the record is kept")
	for _, command := range []string{"gc", "cleanup"} {
		require.Regexp(t, `(?s)Examples:.*--destroy.*Flags:.*--destroy`, runWith("", command, "--help").ok(t))
	}
}

// TestWithoutSubcommand: the help of a command that needs a subcommand is text, so --json is an error.
func TestWithoutSubcommand(t *testing.T) {
	for command, subcommands := range map[string]string{
		"plugins": "list, install, uninstall", "policy": "", "completion": "bash, zsh, fish",
	} {
		require.Contains(t, runWith("", command).ok(t), "Usage:")
		report := runWith("", command, "--json").failure(t, exitUsage)
		require.Contains(t, report.Error, "allocnet "+command+" needs a subcommand: "+subcommands)
	}
}

func TestVersionFlag(t *testing.T) {
	first, _, _ := strings.Cut(runWith("", "version").ok(t), "\n")
	require.Equal(t, first+"\n", runWith("", "--version").ok(t))
	require.Equal(t, runWith("", "version", "--json").ok(t), runWith("", "--version", "--json").ok(t))
}

// TestOutputThatDoesNotArrive writes to an output that cannot be written.
func TestOutputThatDoesNotArrive(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, args := range [][]string{
		{"setup", "web"}, {"ls"}, {"inspect", "web"}, {"check", "web"}, {"networks"}, {"gc", "--live", "web", "--dry-run"},
		{"cleanup", "--audit"}, {"repair"}, {"recover"}, {"plugins"}, {"plugins", "list"}, {"version"}, {"--version"}, {"--help"}, {"help", "ls"}, {"help", "kinds"}, {"completion", "bash"}, {"ls", "--json"},
		{"top", "--interval", "100ms"},
		{"teardown", "web"},
	} {
		var errOut bytes.Buffer
		code := run(t.Context(), w.withFlags(args), strings.NewReader(""), full, &errOut)
		require.Equal(t, exitFailure, code, args)
		require.Equal(t, 1, strings.Count(errOut.String(), "write output: write /dev/full: no space left on device"), errOut.String())
		require.NotContains(t, errOut.String(), "usage:", args)
	}
	var errOut bytes.Buffer
	require.Equal(t, exitFailure, run(t.Context(), append(w.flags(), "ls", "--json"), nil, full, &errOut))
	report := decode[errorReport](t, errOut.String())
	require.Equal(t, "output", report.Kind)
	require.NotContains(t, report.Error, "\n", "it is said once")
}

func TestEnvironment(t *testing.T) {
	w := newWorkspace(t)
	t.Setenv("ALLOCNET_STATE_DIR", w.path("state"))
	t.Setenv("ALLOCNET_CONF_DIR", w.path("conf"))
	require.Contains(t, runWith("", "networks").ok(t), "front")

	t.Setenv("ALLOCNET_JSON", "true")
	require.JSONEq(t, "[]", runWith("", "ls").ok(t))

	t.Setenv("ALLOCNET_TIMEOUT", "soon")
	report := runWith("", "ls", "--json").failure(t, exitUsage)
	require.Contains(t, report.Error, "environment variable ALLOCNET_TIMEOUT")
	runWith("", "networks", "--timeout", "1s").ok(t)

	t.Setenv("ALLOCNET_TIMEOUT", "")
	t.Setenv("ALLOCNET_ENGINE", "magic")
	report = runWith("", "ls", "--json").failure(t, exitUsage)
	require.Contains(t, report.Error, `environment variable ALLOCNET_ENGINE: invalid argument "magic"`)
	require.Contains(t, report.Error, "must be one of auto, exec, native")
	runWith("", "ls", "--engine", "exec").ok(t)
}

// TestEmptyPaths: an empty path would be the working directory. An empty variable, and an empty entry
// of a list, count as not set.
func TestEmptyPaths(t *testing.T) {
	t.Chdir(t.TempDir())
	long := runWith("", "ls", "--json", "--socket", "/run/"+strings.Repeat("x", 103)).failure(t, exitUsage)
	require.Contains(t, long.Error, "the path of a socket has at most 107 bytes")
	for _, flag := range []string{"--state-dir", "--conf-dir", "--plugin-dir", "--socket", "--subnets-from"} {
		for _, command := range [][]string{{"ls"}, {"setup", "web"}, {"teardown", "web"}, {"gc", "--none"}, {"doctor"}} {
			if command[0] == "ls" && flag == "--subnets-from" {
				continue // it has no such flag
			}
			got := runWith("", append(command, "--no-daemon", "--json", flag, "")...).failure(t, exitUsage)
			require.Equal(t, flag+` "": must be a path; omit the flag to use the default`, got.Error)
			require.Equal(t, "invalid", got.Kind)
			require.Contains(t, got.Hint, "usage: allocnet "+command[0])
		}
	}
	require.Contains(t, runWith("", "ls", "--plugin-dir", "/a", "--plugin-dir", "", "--json").failure(t, exitUsage).Error, "--plugin-dir")
	left, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, left)

	t.Setenv("ALLOCNET_STATE_DIR", "")
	t.Setenv("ALLOCNET_PLUGIN_DIR", "/a:")
	cfg, err := parsedApp(t).config()
	require.NoError(t, err)
	require.Equal(t, configurator.DefaultStateDir, cfg.StateDir)
	require.Equal(t, []string{"/a"}, cfg.PluginDirs)
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
	require.Equal(t, configurator.EngineAuto, cfg.Engine)

	t.Setenv("ALLOCNET_ENGINE", "exec")
	a = parsedApp(t, "--plugin-dir", "/c", "--network", "other")
	cfg, err = a.config()
	require.NoError(t, err)
	require.Equal(t, []string{"/c"}, cfg.PluginDirs)
	require.Equal(t, []string{"other"}, cfg.Networks)
	require.Equal(t, configurator.EngineExec, cfg.Engine)
	cfg, err = parsedApp(t, "--engine", "native").config()
	require.NoError(t, err)
	require.Equal(t, configurator.EngineNative, cfg.Engine)
}

// parsedApp is an app whose global flags were read.
func parsedApp(t *testing.T, args ...string) *app {
	t.Helper()
	a := newApp(nil, nil, nil)
	root := newRoot(a)
	require.NoError(t, root.ParseFlags(args))
	setup, _, err := root.Find([]string{"setup"})
	require.NoError(t, err)
	require.NoError(t, a.prepare(setup, nil))
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
