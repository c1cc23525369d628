package veth

import (
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Forward enables forwarding on the host for the address families of a result, but not that of
// a link. The cache prevents repeated work.
func Forward(host *sdk.Host, r *types100.Result) error {
	v4, v6 := familiesOf(r)
	key := fmt.Sprint("forward ", v4, v6)
	return host.Cache.Unless(key, func() error { return host.Switches.Forward(v4, v6) })
}

// Forwarding is that the host forwards the packets of the addresses of a result that arrive over a link.
func Forwarding(link string, r *types100.Result) *object.Forwarding {
	v4, v6 := familiesOf(r)
	return &object.Forwarding{Link: link, V4: v4, V6: v6}
}
