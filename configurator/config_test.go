package configurator

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/lease"
)

func TestTransient(t *testing.T) {
	for code := uint(0); code < 120; code++ {
		err := fmt.Errorf("ADD: %w", types.NewError(code, "said the plugin", ""))
		require.Equal(t, code < 1 || code > 7, transient(err), "code %d", code)
	}
	require.True(t, transient(types.NewError(types.ErrTryAgainLater, "", "")))
	require.True(t, transient(types.NewError(types.ErrInternal, "", "")))
	require.True(t, transient(errors.New("connection refused")))
	require.False(t, transient(fmt.Errorf("x: %w", ErrNoAddress)))
	require.False(t, transient(fmt.Errorf("x: %w", ErrInvalidResult)))
	require.False(t, transient(fmt.Errorf("x: %w", lease.ErrNotInRange)))
	require.False(t, transient(fmt.Errorf("x: %w", ErrPluginNotInstalled)))
	require.False(t, transient(fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "/absent", Err: fs.ErrNotExist})))
	require.True(t, transient(fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "/sys/class/net/veth1/ifindex", Err: fs.ErrNotExist})))
}

func TestInvalidConfig(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"relative ConfDir":  {Config{ConfDir: "conf"}, `ConfDir "conf"`},
		"relative StateDir": {Config{StateDir: "state"}, `StateDir "state"`},
		"long prefix":       {Config{InterfacePrefix: "fifteencharactr"}, "InterfacePrefix"},
		"pattern as prefix": {Config{InterfacePrefix: "e%d"}, "InterfacePrefix"},
		"slash in prefix":   {Config{InterfacePrefix: "e/"}, "InterfacePrefix"},
		"engine":            {Config{Engine: "warp"}, `Engine "warp"`},
		"both":              {Config{Network: "a", Networks: []string{"b"}}, "either Network or Networks"},
		"relative NetnsDir": {Config{NetnsDir: "netns"}, `NetnsDir "netns"`},
		"network twice":     {Config{Networks: []string{"a", "b", "a"}}, `Networks "a": occurs twice`},
		"pool twice":        {Config{Pools: []Pool{{Network: "a", Size: 1}, {Network: "a", Size: 2}}}, `Pools "a": occurs twice`},
		"journal":           {Config{Journal: -1}, `Journal "-1"`},
		"timeout":           {Config{Timeout: -1}, "Timeout"},
		"attempts":          {Config{Retry: RetryPolicy{Attempts: -1}}, "Retry.Attempts"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(c.cfg)
			require.ErrorIs(t, err, ErrInvalidConfig)
			require.ErrorContains(t, err, c.want)
		})
	}
}
