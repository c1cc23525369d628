package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/settings"
)

// outcome is the result of one run of the program.
type outcome struct {
	code        int
	out, errOut string
}

func run(environ []string, args ...string) outcome {
	var out, errOut bytes.Buffer
	code := execute(context.Background(), args, environ, &out, &errOut)
	return outcome{code, out.String(), errOut.String()}
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.hcl")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestValidate(t *testing.T) {
	good := file(t, `engine = "exec"`)
	bad := file(t, "\nengin = 1\nretry { delay = 5 }")
	wrong := "allocnetd: " + bad + `:2: engin: there is no such setting: did you mean "engine"?` + "\n" +
		"allocnetd: " + bad + `:3: retry.delay: must be text in quotes, such as delay = "1s"` + "\n"
	for name, test := range map[string]struct {
		environ []string
		args    []string
		want    outcome
	}{
		"good":          {nil, []string{good}, outcome{exitOK, good + ": valid\n", ""}},
		"config":        {nil, []string{"--config", good}, outcome{exitOK, good + ": valid\n", ""}},
		"variable":      {[]string{"ALLOCNETD_CONFIG=" + good}, nil, outcome{exitOK, good + ": valid\n", ""}},
		"flag wins":     {[]string{"ALLOCNETD_CONFIG=" + bad}, []string{"--config=" + good}, outcome{exitOK, good + ": valid\n", ""}},
		"argument wins": {[]string{"ALLOCNETD_CONFIG=" + bad}, []string{good, "--config", bad}, outcome{exitOK, good + ": valid\n", ""}},
		"none":          {nil, nil, outcome{exitOK, settings.DefaultFile + ": there is no such file; the defaults, with the environment and the flags, are valid\n", ""}},
		"bad":           {nil, []string{bad}, outcome{exitUsage, "", wrong}},
		"bad variable":  {[]string{"ALLOCNETD_ENGINE=x"}, []string{good}, outcome{exitUsage, "", "allocnetd: environment variable ALLOCNETD_ENGINE: engine: \"x\" is not one of [\"auto\" \"exec\" \"native\"]\n"}},
		"bad flag":      {nil, []string{good, "--timeout=5"}, outcome{exitUsage, "", "allocnetd: flag --timeout: timeout: \"5\" is not a duration: write it with its unit, such as \"5s\" or \"1m30s\"\n"}},
		"missing":       {nil, []string{"/none.hcl"}, outcome{exitUsage, "", "allocnetd: /none.hcl: cannot be read: open /none.hcl: no such file or directory\n"}},
		"two files":     {nil, []string{good, bad}, outcome{exitUsage, "", "allocnetd: accepts at most 1 arg(s), received 2\nallocnetd: see allocnetd --help\n"}},
		"unknown flag":  {nil, []string{"--nope"}, outcome{exitUsage, "", "allocnetd: unknown flag: --nope\nallocnetd: see allocnetd --help\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, run(test.environ, append([]string{"validate"}, test.args...)...))
		})
	}
}

func TestValidateJSON(t *testing.T) {
	bad := file(t, "\nengin = 1")
	o := run(nil, "validate", "--json", bad)
	require.Equal(t, outcome{exitUsage, `{
  "file": "` + bad + `",
  "exists": true,
  "valid": false,
  "errors": [
    {
      "origin": "` + bad + `",
      "line": 2,
      "key": "engin",
      "problem": "there is no such setting: did you mean \"engine\"?"
    }
  ]
}
`, ""}, o)

	o = run(nil, "validate", "--json", file(t, `engine = "exec"`), "--networks=a,b")
	require.Equal(t, exitOK, o.code)
	var v validation
	require.NoError(t, json.Unmarshal([]byte(o.out), &v))
	require.True(t, v.Valid)
	require.Contains(t, o.out, `"errors": []`)
	require.Equal(t, `"exec"`, v.Settings["engine"])
	require.Equal(t, `["a", "b"]`, v.Settings["networks"])
	require.Equal(t, "3", v.Settings["retry.attempts"])
	require.True(t, v.Exists)

	o = run(nil, "validate", "--json")
	require.Equal(t, exitOK, o.code)
	require.NoError(t, json.Unmarshal([]byte(o.out), &v))
	require.True(t, v.Valid)
	require.False(t, v.Exists)
}

// TestValidateTogether: settings that exclude each other are not valid.
func TestValidateTogether(t *testing.T) {
	o := run(nil, "validate", file(t, "engine = \"exec\"\npolicy = [\"isolated\"]"))
	require.Equal(t, exitUsage, o.code)
	require.Contains(t, o.errOut, "policy: plugin binaries cannot enforce network policies")
}

func TestCommandLine(t *testing.T) {
	require.Equal(t, outcome{exitUsage, "", "allocnetd: unknown command \"nope\" for \"allocnetd\"\nallocnetd: see allocnetd --help\n"}, run(nil, "nope"))
	require.Equal(t, exitUsage, run(nil, "run", "--engine=x").code, "invalid settings")
	o := run(nil, "--help")
	require.Equal(t, exitOK, o.code)
	require.Contains(t, o.out, "--limits-operation-timeout")
	require.Contains(t, o.out, `(default 2m)`)
}

func TestSourceIsAbsolute(t *testing.T) {
	a := &app{config: "x.hcl"}
	wd, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(wd, "x.hcl"), a.source().Path())
}

func TestVersion(t *testing.T) {
	require.Equal(t, build{Version: "unknown", Go: "unknown"}, newBuild(nil))
	info := &debug.BuildInfo{GoVersion: "go1", Main: debug.Module{Version: "v1"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"},
	}}
	require.Equal(t, build{Version: "v1", Revision: "abc+changes", Go: "go1"}, newBuild(info))
	require.True(t, strings.HasPrefix(run(nil, "version").out, "allocnetd "))
	require.Equal(t, run(nil, "version").out, run(nil, "--version").out)
	var b build
	require.NoError(t, json.Unmarshal([]byte(run(nil, "version", "--json").out), &b))
	require.NotEmpty(t, b.Go)
}
