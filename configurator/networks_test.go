package configurator

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestMisspeltKeyIsTold: the plugin's binary runs and ignores the key. The log
// and the list of networks report it.
func TestMisspeltKeyIsTold(t *testing.T) {
	var log bytes.Buffer
	h := newTestHost(t, func(c *Config) {
		c.Engine, c.Network, c.Logger = EngineAuto, "net", hclog.New(&hclog.LoggerOptions{Output: &log})
	})
	require.NoError(t, fakeplugin.Install(h.bin, "tuning"))
	h.file("net.conflist", strings.Replace(h.conflist("net", "1.0.0", nil, adds()), `"type":"one"`, `"type":"tuning","sysctls":{}`, 1))
	h.file("plain.conflist", `{"cniVersion":"1.0.0","name":"plain","plugins":[{"type":"loopback"}]}`)
	for _, id := range []string{"a", "b"} {
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(log.String(), "a plugin runs as a binary"), log.String())
	networks, skipped := h.Networks(t.Context())
	require.Empty(t, skipped)
	require.Equal(t, EngineExec, networks[0].Engine)
	require.Regexp(t, `plugin "tuning": the native plugin does not understand the key "(fake|sysctls)"`, networks[0].Reason)
	require.Equal(t, EngineNative, networks[1].Engine)
	require.Empty(t, networks[1].Reason)
}

// TestArgsAreInTheRecord: the record contains the arguments, except
// IgnoreUnknown, which only tells plugins how to parse them.
func TestArgsAreInTheRecord(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Args = map[string]string{"K8S_POD_NAME": "web-0", "IgnoreUnknown": "1"}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"K8S_POD_NAME": "web-0"}, r.Args)
}

// TestMoveToAnotherEngine: if an edit changes the engine of a network, that is
// logged at level info.
func TestMoveToAnotherEngine(t *testing.T) {
	var log bytes.Buffer
	h := newTestHost(t, func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}) })
	require.NoError(t, fakeplugin.Install(h.bin, "loopback"))
	write := func(keys string) {
		h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"loopback"`+keys+`}]}`)
	}
	move := `(?m)^.* \[INFO\]  the engine of the network has changed; .*: network=net engine=`
	again := func(id string) {
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
		require.NoError(t, h.Teardown(t.Context(), Allocation{ID: id}))
	}
	write("")
	again("b")
	again("b2")
	require.NotContains(t, log.String(), "engine of the network")
	write(`,"misspelt":true,"fake":{"log":"` + h.log + `","on":{"ADD":{"result":` + result + `}}}`)
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.Regexp(t, move+`exec before=native because=.*key`, log.String())
	log.Reset()
	write("")
	again("c")
	again("c2")
	require.Regexp(t, move+`native before=exec because=""`, log.String())
	require.Equal(t, 1, strings.Count(log.String(), "the engine of the network has changed"))
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, EngineExec, r.Engine)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
}
