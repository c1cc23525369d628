package cniexec

import (
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
)

// TestGoCNITakesOurRunner: one that does not would have the configurator do without
// go-cni.
func TestGoCNITakesOurRunner(t *testing.T) { require.True(t, TakesRunner()) }

func TestSetRunner(t *testing.T) {
	with := libcni.NewCNIConfig(nil, &runner{})
	instance := struct {
		before    string
		cniConfig libcni.CNI
		after     string
	}{before: "x", after: "y"}
	require.NoError(t, setRunner(&instance, with))
	require.Same(t, with, instance.cniConfig)
	require.Equal(t, "xy", instance.before+instance.after)
	for name, unlike := range map[string]any{
		"nothing":       nil,
		"no struct":     new(int),
		"a copy":        instance,
		"no such field": &struct{ other libcni.CNI }{},
		"another type":  &struct{ cniConfig *libcni.CNIConfig }{},
	} {
		require.ErrorIs(t, setRunner(unlike, with), errNoRunner, name)
	}
}
