package bridge

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestGuardOfAPort: a port is changed exactly if it is not guarded, or is attached anew.
func TestGuardOfAPort(t *testing.T) {
	off := false
	for name, test := range map[string]struct {
		port              rtnl.Port
		guard             *bool
		guarded, attached bool // whether the port is attached anew
		changes           bool
	}{
		"guarded":            {port: rtnl.Port{Group: names.GuardedPortGroup, Hooked: true}, guarded: true},
		"of another group":   {port: rtnl.Port{Hooked: true}, changes: true},
		"not hooked":         {port: rtnl.Port{Group: names.GuardedPortGroup}, changes: true},
		"attached anew":      {port: rtnl.Port{Group: names.GuardedPortGroup, Hooked: true}, guarded: true, attached: true, changes: true},
		"without a guard":    {guard: &off, guarded: true},
		"no guard, attached": {guard: &off, guarded: true, attached: true},
	} {
		b := &bridge{config: config{SourceGuard: test.guard}}
		require.Equal(t, test.guarded, b.isGuarded(test.port), name)
		var changes, none rtnl.Batch
		require.Equal(t, test.changes, b.guardPort(&changes, test.port, test.attached), name)
		require.Equal(t, !test.changes, reflect.DeepEqual(none, changes), name)
	}
}
