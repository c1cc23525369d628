package pluginexec

import (
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// InNetns returns r with the path of the network namespace changed from one to another.
// It does not modify r, and copies it if necessary. During an operation, plugins get a
// path that cannot be redirected, and compare it with the path in prevResult; records
// and callers use the path of the allocation.
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
