package configurator

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoutes: the embedded network announces its allocations with Config.Routes. Those that
// are set up keep their routes when the Config changes.
func TestRoutes(t *testing.T) {
	table := func() string {
		out, _ := exec.Command("ip", "-4", "route", "show", "table", "100").Output() // fails without the table
		return string(out)
	}
	for name, c := range map[string]struct {
		routes Routes
		want   string
	}{
		"addresses": {Routes{Table: 100}, "^10.202.0.2 dev veth[a-z2-7]+ proto 91 scope link \n$"},
		"subnets":   {Routes{Table: 100, Protocol: 200, Subnets: true}, "^unreachable 10.202.0.0/16 proto 200 \n$"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t, func(cfg *Config) { cfg.Engine, cfg.Network, cfg.Routes = EngineNative, "allocnet", c.routes })
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Regexp(t, c.want, table())
			h.cfg.Routes = Routes{}
			h.Configurator = h.restarted()
			other := h.alloc("other")
			_, err = h.Setup(t.Context(), other)
			require.NoError(t, err)
			require.Regexp(t, c.want, table(), "the other one is not announced")
			require.NoError(t, h.Check(t.Context(), a))
			require.NoError(t, h.Check(t.Context(), other))
			require.NoError(t, h.Teardown(t.Context(), a))
			require.Empty(t, table())
			require.NoError(t, h.Teardown(t.Context(), other))
			require.NoError(t, h.Close())
		})
	}
}

func TestRoutesRefused(t *testing.T) {
	_, err := New(Config{Routes: Routes{Table: 254}})
	require.ErrorIs(t, err, ErrInvalidConfig)
	require.ErrorContains(t, err, "table 254")
	h := newTestHost(t, func(c *Config) { c.Engine, c.Network, c.Routes = EngineExec, "allocnet", Routes{Table: 100} })
	err = h.Ready(t.Context())
	require.ErrorIs(t, err, ErrPluginNotInstalled)
	require.ErrorContains(t, err, `needs plugin "routes"`)
}
