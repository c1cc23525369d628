package sdk

import (
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// EnsureLoopbackRouted sets route_localnet of a link of the host, unless it is set already: a request that changes
// nothing makes the kernel notify all its subsystems nevertheless. Of a link that is not an allocation's, it
// records that. rtnl.IsNotFound reports whether the error means that the link does not exist.
func (h *Host) EnsureLoopbackRouted(name string) error {
	on, known := rtnl.LoopbackRouted(name)
	if on {
		return nil
	}
	if known && !strings.HasPrefix(name, names.VethPrefix) {
		if err := h.Switches.Record("net/ipv4/conf/"+name+"/route_localnet", "1"); err != nil {
			return err
		}
	}
	return h.Kernel.RouteLoopback(name)
}
