package configurator

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestNoConfigurationInTheLog uses a plugin that prints its configuration.
func TestNoConfigurationInTheLog(t *testing.T) {
	var log bytes.Buffer
	h := newTestHost(t, func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
	said := `got {"cniVersion":"1.0.0","password":"hunter2"}`
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 11, Msg: said}, "DEL": {Code: 100, Msg: said}}))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.ErrorContains(t, err, "hunter2", "for the caller, whose configuration it is")
	require.Contains(t, log.String(), "got {...}")
	require.Contains(t, log.String(), "DEL failed")
	require.NotContains(t, log.String(), "hunter2")

	said = `bad section {"password":"hunter2"}`
	require.NoError(t, fakeplugin.Install(h.bin, "firewall"))
	conflist := h.conflist("net", "1.0.0", nil, adds(behaviours{"CHECK": {Code: 100, Msg: said, Only: 1}}))
	h.file("net.conflist", strings.ReplaceAll(conflist, `"type":"one"`, `"type":"firewall"`))
	b := h.alloc("b")
	for range 2 {
		_, err = h.Setup(t.Context(), b)
		require.NoError(t, err)
	}
	require.Contains(t, log.String(), "bad section {...}")
	require.Contains(t, log.String(), "setting it up again")
	require.NotContains(t, log.String(), "hunter2")
}
