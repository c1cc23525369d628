package cni

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestPathOfTheRuntime: plugins are searched for in the CNI_PATH of a runtime
// that runs as root, and later operations find the same ones.
func TestPathOfTheRuntime(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineExec, configurator.EngineAuto} {
		t.Run(string(engine), func(t *testing.T) {
			w := newWorkspace(t, engine)
			w.network("own", `"1.1.0"`, w.fake("only", adds))
			dir := filepath.Join(w.dir, "runtime's")
			require.NoError(t, fakeplugin.Install(dir, "only", "one"))
			conf := ours("1.1.0", `"delegate":"own"`)
			add := w.env("ADD", "c1")
			require.Contains(t, w.refuse(add, conf).Error(), "install it there")
			add.Path = "relative::" + dir + ":" + dir + "/../runtime's:/none"
			status := Env{Command: "STATUS", Path: add.Path}

			w.serve(status, conf)
			w.serve(add, conf)
			r, err := w.c.Get(t.Context(), "c1.eth0")
			require.NoError(t, err)
			require.Equal(t, []string{dir, "/none"}, r.PluginDirs)
			w.serve(w.env("CHECK", "c1"), conf)
			w.serve(Env{Command: "GC"}, ours("1.1.0", `"delegate":"own","cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))

			// The plugin may have left something, so the record stays
			// until its DEL succeeds.
			away := dir + " away"
			require.NoError(t, os.Rename(dir, away))
			e := w.refuse(w.env("DEL", "c1"), conf)
			require.Contains(t, e.Error(), `"only"`)
			require.Equal(t, []string{"c1.eth0"}, w.records())
			require.NoError(t, os.Rename(away, dir))
			w.serve(w.env("DEL", "c1"), conf)
			require.Empty(t, w.records())

			w.serve(Env{Command: "GC", Path: add.Path}, ours("1.1.0", `"delegate":"own","cni.dev/valid-attachments":[]`))
			w.serve(Env{Command: "GC", Path: add.Path}, ours("1.1.0", `"delegate":"own","cni.dev/valid-attachments":null`))
			commands, err := fakeplugin.Commands(w.log)
			require.NoError(t, err)
			require.Equal(t, []string{"only STATUS", "only ADD", "only CHECK", "only GC", "only DEL", "only GC", "only GC"}, commands)
		})
	}
}

// TestPathOfOthers: the CNI_PATH of users other than root is ignored, even if
// they may send configurations and the directory is one of the daemon's.
func TestPathOfOthers(t *testing.T) {
	w := newWorkspace(t, configurator.EngineExec)
	w.network("own", `"1.1.0"`, w.fake("one", adds))
	dir := filepath.Join(w.dir, "mine")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "one"), []byte("#!/bin/sh\ntest $CNI_COMMAND != ADD || exit 7\n"), 0o755))
	conf := ours("1.1.0", `"delegate":"own"`)
	for _, command := range []string{"STATUS", "ADD", "CHECK", "DEL"} {
		e := w.env(command, "c1")
		e.Path = dir
		require.Nil(t, w.Serve(t.Context(), Request{Env: e, Config: json.RawMessage(conf), Conflists: true}).Error, command)
		if command == "ADD" {
			r, err := w.c.Get(t.Context(), "c1.eth0")
			require.NoError(t, err)
			require.Empty(t, r.PluginDirs)
		}
	}
	e := w.env("ADD", "c2")
	e.Path = dir
	require.Contains(t, w.refuse(e, conf).Error(), "exit status 7", "of root it does")
}

// TestBoundsOfPath: entries beyond the bound of CNI_PATH are omitted, so that a
// DEL never fails because of them.
func TestBoundsOfPath(t *testing.T) {
	var dirs []string
	for i := range 100 {
		dirs = append(dirs, fmt.Sprint("/", i))
	}
	c := &call{root: true, env: Env{Path: "/" + strings.Repeat("x", unix.PathMax) + ":" + strings.Join(dirs, ":")}}
	require.Equal(t, dirs[:configurator.MaxPluginDirs], c.pluginDirs())
}
