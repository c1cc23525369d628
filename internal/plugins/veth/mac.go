package veth

import (
	"cmp"
	"fmt"
	"net"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// MAC returns the hardware address of the container's end: that of runtimeConfig, else
// the given one, else a random one.
func MAC(common *sdk.Common, otherwise string) (net.HardwareAddr, error) {
	var runtime struct {
		Mac string `json:"mac"`
	}
	if err := common.Runtime(&runtime); err != nil {
		return nil, err
	}
	wanted := cmp.Or(runtime.Mac, otherwise)
	if wanted == "" {
		return rtnl.RandomMAC(), nil
	}
	mac, err := names.ParseMAC(wanted)
	if err != nil {
		return nil, fmt.Errorf("requested MAC %q: %w", wanted, err)
	}
	return mac, nil
}
