package pluginexec

import (
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// InNetns returns a result with the path of the network namespace changed from one to
// another. Plugins get a path that cannot be led elsewhere during the operation, and
// compare it with that of prevResult; everything else uses the allocation's own path.
// The result r itself is not changed.
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
