package cni

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestPluginsOfOthers: for a caller that may not send configurations, none of
// its plugins runs, and a DEL still removes what is recorded.
func TestPluginsOfOthers(t *testing.T) {
	w := newWorkspace(t, configurator.EngineExec)
	conf := ours("1.1.0", `"plugins":[`+w.fake("one", adds)+`],"cni.dev/valid-attachments":[]`)
	call := func(command string) *Error {
		return w.Serve(t.Context(), Request{Env: w.env(command, "c1"), Config: json.RawMessage(conf)}).Error
	}
	for _, command := range []string{"ADD", "STATUS", "GC"} {
		e := call(command)
		require.NotNil(t, e, command)
		require.Equal(t, uint(CodeInvalidConfig), e.Code, command)
		require.Contains(t, e.Error(), "for root only; name a network", command)
	}
	require.Nil(t, call("DEL"))
	require.Nil(t, call("VERSION"))
	commands, err := fakeplugin.Commands(w.log)
	require.NoError(t, err)
	require.Empty(t, commands)

	w.serve(w.env("ADD", "c1"), conf)
	require.Nil(t, call("CHECK"))
	require.Nil(t, call("DEL"))
	require.Empty(t, w.records())
	commands, err = fakeplugin.Commands(w.log)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one CHECK", "one DEL"}, commands)
}
