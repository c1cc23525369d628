package configurator

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

func TestFromSlog(t *testing.T) {
	var out bytes.Buffer
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	l := FromSlog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: withoutTime})))
	require.False(t, l.IsDebug())
	require.True(t, l.IsInfo())
	require.Equal(t, hclog.Info, l.GetLevel())
	l.Trace("not written")
	l.Debug("not written")
	l.Info("info", "alloc", "web")
	l.With("alloc", "db").Warn("warn", "n", 1)
	l.Named("a").Named("b").Error("error")
	l.Log(hclog.Warn, "by level")
	require.Equal(t, []any{"k", "v"}, l.With("k", "v").ImpliedArgs())
	require.Equal(t, `level=INFO msg=info alloc=web
level=WARN msg=warn alloc=db n=1
level=ERROR msg=error logger=a.b
level=WARN msg="by level"
`, out.String())
}

func TestConfiguratorLogsToSlog(t *testing.T) {
	h := newTestHost(t)
	var out bytes.Buffer
	h.cfg.Logger = FromSlog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	h.network("net", "1.0.0", adds())
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.Contains(t, out.String(), `level=DEBUG msg="operation succeeded" operation=setup alloc=a`)
}
