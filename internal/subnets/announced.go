package subnets

import (
	"encoding/json"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// announcement is a table with the protocol of the routes that the plugin routes writes into it.
type announcement struct {
	Table    int  `json:"table"`
	Protocol *int `json:"protocol"`
}

// Announced returns a function that reports whether a route is one of the plugin routes of the networks.
func Announced(networks []*conflist.Network) func(*netlink.Route) bool {
	var all []announcement
	for _, n := range networks {
		for _, p := range n.List.Plugins {
			var a announcement
			if p.Network.Type == "routes" && json.Unmarshal(p.Bytes, &a) == nil {
				all = append(all, a)
			}
		}
	}
	return func(r *netlink.Route) bool {
		return slices.ContainsFunc(all, func(a announcement) bool {
			protocol := announce.DefaultProtocol
			if a.Protocol != nil {
				protocol = *a.Protocol
			}
			return a.Table == r.Table && protocol == int(r.Protocol)
		})
	}
}
