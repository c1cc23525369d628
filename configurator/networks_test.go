package configurator

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestMisspeltKeyIsTold: the network runs by the binary, which ignores the key, and
// the log and the list of networks say so.
func TestMisspeltKeyIsTold(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(c *Config) {
		c.Engine, c.Network, c.Logger = EngineAuto, "net", hclog.New(&hclog.LoggerOptions{Output: &log})
	})
	require.NoError(t, fakeplugin.Install(w.bin, "tuning"))
	w.file("net.conflist", strings.Replace(w.conflist("net", "1.0.0", nil, adds()), `"type":"one"`, `"type":"tuning","sysctls":{}`, 1))
	w.file("plain.conflist", `{"cniVersion":"1.0.0","name":"plain","plugins":[{"type":"loopback"}]}`)
	for _, id := range []string{"a", "b"} {
		_, err := w.Setup(t.Context(), w.alloc(id))
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(log.String(), "a plugin runs as a binary"), log.String())
	networks, skipped := w.Networks(t.Context())
	require.Empty(t, skipped)
	require.Equal(t, EngineExec, networks[0].Engine)
	require.Regexp(t, `plugin "tuning": the native plugin does not understand the key "(fake|sysctls)"`, networks[0].Reason)
	require.Equal(t, EngineNative, networks[1].Engine)
	require.Empty(t, networks[1].Reason)
}

// TestArgsAreInTheRecord but for what is no name of the runtime.
func TestArgsAreInTheRecord(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Args = map[string]string{"K8S_POD_NAME": "web-0", "IgnoreUnknown": "1"}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"K8S_POD_NAME": "web-0"}, r.Args)
}

// TestMoveToAnotherEngine is logged at info when a configuration was edited.
func TestMoveToAnotherEngine(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}) })
	require.NoError(t, fakeplugin.Install(w.bin, "loopback"))
	write := func(keys string) {
		w.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"loopback"`+keys+`}]}`)
	}
	move := `(?m)^.* \[INFO\]  the engine of the network has changed; .*: network=net engine=`
	again := func(id string) {
		_, err := w.Setup(t.Context(), w.alloc(id))
		require.NoError(t, err)
		require.NoError(t, w.Teardown(t.Context(), Allocation{ID: id}))
	}
	write("")
	again("b")
	again("b2")
	require.NotContains(t, log.String(), "engine of the network")
	write(`,"misspelt":true,"fake":{"log":"` + w.log + `","on":{"ADD":{"result":` + result + `}}}`)
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	require.Regexp(t, move+`exec before=native because=.*key`, log.String())
	log.Reset()
	write("")
	again("c")
	again("c2")
	require.Regexp(t, move+`native before=exec because=""`, log.String())
	require.Equal(t, 1, strings.Count(log.String(), "the engine of the network has changed"))
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, EngineExec, r.Engine)
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a"}))
}
