package object

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestBridgePort: what differs from the wanted port is named and changed, and nothing else.
func TestBridgePort(t *testing.T) {
	whole := rtnl.LinkState{Name: "p", Index: 7, Master: 3, Bridged: true, Group: names.GuardedPortGroup, Hooked: true, Up: true}
	for name, test := range map[string]struct {
		port    BridgePort
		have    func(*rtnl.LinkState)
		finding string // "" for none
		stays   bool   // nothing is changed
	}{
		"whole":               {port: BridgePort{Guarded: true}},
		"of another group":    {port: BridgePort{Guarded: true}, have: func(l *rtnl.LinkState) { l.Group = 0 }, finding: "is in group 0"},
		"released":            {port: BridgePort{Guarded: true}, have: func(l *rtnl.LinkState) { l.Group = names.ReleasedPortGroup }, finding: "the source guard of port \"p\" has ended"},
		"not hooked":          {port: BridgePort{Guarded: true}, have: func(l *rtnl.LinkState) { l.Hooked = false }, finding: "group_fwd_mask"},
		"no guard":            {have: func(l *rtnl.LinkState) { l.Group, l.Hooked = 0, false }},
		"of no bridge":        {have: func(l *rtnl.LinkState) { l.Master = 0 }, finding: "is not a port of the bridge"},
		"of no bridge, VLANs": {port: BridgePort{Tagged: true}, have: func(l *rtnl.LinkState) { l.Master = 0 }, finding: "is not a port of the bridge", stays: true},
		// Frames of a port that is attached anew do not pass the rules until it is hooked.
		"attached anew":         {port: BridgePort{Guarded: true}, have: func(l *rtnl.LinkState) { l.Master = 0 }, finding: "group_fwd_mask"},
		"hairpin is missing":    {port: BridgePort{Hairpin: true}, finding: "is not in hairpin mode"},
		"hairpin is additional": {have: func(l *rtnl.LinkState) { l.Hairpin = true }},
		"isolation is missing":  {port: BridgePort{Isolated: true}, finding: "is not isolated"},
		"flood off":             {have: func(l *rtnl.LinkState) { l.Unusual = []string{"flood off"} }, finding: "has flood off"},
	} {
		have := whole
		if test.have != nil {
			test.have(&have)
		}
		v := &View{Host: Host{Kernel: &rtnl.Host{}}, links: map[string]*rtnl.LinkState{"p": &have, "b": {Name: "b", Index: 3, Kind: "bridge", Up: true}}}
		test.port.Link, test.port.Bridge = "p", "b"
		differences, err := compare(t.Context(), v, []Object{&test.port})
		require.NoError(t, err, name)
		if test.finding == "" {
			require.Empty(t, differences, name)
			continue
		}
		require.ErrorContains(t, Check(t.Context(), v, &test.port), test.finding, name)
		var changes, none rtnl.Batch
		for _, d := range differences {
			if d.Put != nil {
				d.Put(&changes)
			}
		}
		require.Equal(t, test.stays, reflect.DeepEqual(none, changes), name)
	}
}
