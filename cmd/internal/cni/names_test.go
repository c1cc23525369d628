package cni

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestNamesOfARuntime: with every command, no name from a runtime leads outside
// the plugin directories.
func TestNamesOfARuntime(t *testing.T) {
	w := newWorkspace(t, configurator.EngineAuto)
	w.vendor(filepath.Join(w.dir, "vendor"))
	require.NoError(t, fakeplugin.Install(filepath.Join(w.dir, "evil", "bin"), "payload"))
	payload := w.fake("payload", adds)
	for name, plugins := range map[string]string{
		"ipam": strings.Replace(payload, "{", `{"ipam":{"type":"../../evil"},`, 1),
		"type": strings.Replace(payload, "payload", "../../evil/bin/payload", 1),
	} {
		conf := ours("1.1.0", `"plugins":[`+plugins+`],"cni.dev/valid-attachments":[]`)
		for _, command := range []string{"ADD", "STATUS", "GC"} {
			e := w.refuse(w.env(command, "c1"), conf)
			require.Equal(t, uint(CodeInvalidConfig), e.Code, "%s %s", name, command)
			require.Contains(t, e.Error(), "is not a file name", "%s %s", name, command)
		}
		require.Equal(t, uint(CodeUnknownContainer), w.refuse(w.env("CHECK", "c1"), conf).Code)
		w.serve(w.env("DEL", "c1"), conf)
		w.serve(w.env("VERSION", "c1"), conf)
	}
	commands, err := fakeplugin.Commands(w.log)
	require.NoError(t, err)
	require.Empty(t, commands, "nothing was run")

	for _, attachment := range []string{`{"containerID":"../x","ifname":"eth0"}`, `{"containerID":"x","ifname":"../../x"}`} {
		e := w.refuse(w.env("GC", "c1"), ours("1.1.0", `"delegate":"br","cni.dev/valid-attachments":[`+attachment+`]`))
		require.Equal(t, uint(CodeInvalidConfig), e.Code)
	}
}
