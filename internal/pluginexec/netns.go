package pluginexec

import (
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// InNetns is a result in which the network namespace has another path. Plugins get
// a path that nobody can lead elsewhere meanwhile, and find that of prevResult to be
// the same; everybody else goes by the allocation's own. The result is not changed.
func InNetns(r *types100.Result, from, to string) *types100.Result {
	is := func(i *types100.Interface) bool { return i != nil && i.Sandbox == from }
	if r == nil || from == to || !slices.ContainsFunc(r.Interfaces, is) {
		return r
	}
	renamed := *r
	renamed.Interfaces = slices.Clone(r.Interfaces)
	for n, i := range renamed.Interfaces {
		if is(i) {
			renamed.Interfaces[n] = i.Copy()
			renamed.Interfaces[n].Sandbox = to
		}
	}
	return &renamed
}
