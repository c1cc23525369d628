// Package subnets compares the subnets of networks with the addresses, routes and next hops of the host.
package subnets

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
)

// Subnet is a subnet of a network that the host is connected to, or routes to.
type Subnet struct {
	Network *conflist.Network
	Prefix  netip.Prefix // masked
	Range   lease.Range  // First and Last are invalid for static addresses; Gateway may be
	DataDir string       // of the leases; "" for static addresses
	// Addresses are those of attachments, besides the leased ones.
	Addresses []netip.Addr
	Bridge    string // "" for none
	// Gateway reports that the host has the address of the gateway.
	Gateway bool
}

// Of returns the subnets of the plugins bridge and ptp of a network. The others join networks of the
// host. It leaves out ranges that cannot be read: see Pools.
func Of(n *conflist.Network) []Subnet {
	type key struct{}
	return n.Derive(key{}, func() any {
		var list []Subnet
		for _, p := range n.List.Plugins {
			if p.Network.Type != "bridge" && p.Network.Type != "ptp" {
				continue
			}
			s := Subnet{Network: n, Gateway: true}
			if p.Network.Type == "bridge" {
				conf := readBridge(p.Bytes)
				s.Bridge, s.Gateway = conf.Bridge, conf.IsGateway || conf.IsDefaultGateway
			}
			for _, r := range rangesOf(p.Network.IPAM.Type, p.Network.Type, p.Bytes) {
				s.Prefix, s.Range, s.DataDir = r.Subnet, r.Range, r.DataDir
				if !slices.ContainsFunc(list, func(other Subnet) bool { return other.Prefix == s.Prefix && other.Bridge == s.Bridge }) {
					list = append(list, s)
				}
			}
		}
		return list
	}).([]Subnet)
}

// bridge are keys of the plugin bridge.
type bridge struct {
	Bridge           string `json:"bridge"`
	IsGateway        bool   `json:"isGateway"`
	IsDefaultGateway bool   `json:"isDefaultGateway"`
	IPMasq           bool   `json:"ipMasq"`
}

// readBridge reads them. The plugin refuses what cannot be read.
func readBridge(conf []byte) bridge {
	b := bridge{Bridge: "cni0"}
	_ = json.Unmarshal(conf, &b)
	return b
}

// BridgeOf returns the bridge of a network, or "" if it has none.
func BridgeOf(n *conflist.Network) string {
	for _, p := range n.List.Plugins {
		if p.Network.Type == "bridge" {
			return readBridge(p.Bytes).Bridge
		}
	}
	return ""
}

// IsGateway reports whether the host is the gateway of a network: not if its first plugin is a bridge without the
// gateway's address, nor if it is one that joins a network of the host.
func IsGateway(n *conflist.Network) bool {
	for _, p := range n.List.Plugins {
		switch p.Network.Type {
		case "bridge":
			conf := readBridge(p.Bytes)
			return conf.IsGateway || conf.IsDefaultGateway || conf.IPMasq
		case "ptp":
			return true
		case "macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap":
			return false
		}
	}
	return true
}

// rangesOf returns the ranges of a plugin's IPAM configuration that can be read.
func rangesOf(ipam, plugin string, conf []byte) []Pool {
	switch ipam {
	case "host-local":
		pools, _ := poolsOf(plugin, conf)
		return pools
	case "static":
		return staticOf(conf)
	}
	return nil
}

// staticOf returns the subnets of the addresses of the plugin static.
func staticOf(conf []byte) (pools []Pool) {
	var c struct {
		IPAM struct {
			Addresses []struct {
				Address netip.Prefix `json:"address"`
				Gateway netip.Addr   `json:"gateway"`
			} `json:"addresses"`
		} `json:"ipam"`
	}
	if json.Unmarshal(conf, &c) != nil {
		return nil
	}
	for _, a := range c.IPAM.Addresses {
		if a.Address.IsValid() {
			pools = append(pools, Pool{Subnet: a.Address.Masked(), Range: lease.Range{Gateway: a.Gateway.Unmap()}})
		}
	}
	return pools
}

// IsOwn reports whether what the host has belongs to the network of the subnet: the route or the address of
// an attachment, or the address of flannel's tunnel, which is the first one of the subnet.
func (s Subnet) IsOwn(t Taken) bool {
	if !t.Prefix.IsSingleIP() {
		return false
	}
	return t.Owner.OfNetwork(s.Network.Name) || t.Prefix.Addr() == s.Prefix.Addr() || s.leased(t)
}

// leased reports whether what the host has is that of a leased address, or of the gateway, at the link of an
// attachment that does not name its owner: those of the reference plugins.
func (s Subnet) leased(t Taken) bool {
	return s.isLeased(t.Prefix.Addr()) || t.Kind != NextHop && t.Prefix.Addr() == s.Range.Gateway && strings.HasPrefix(t.Link, "veth")
}

// isLeased reports whether an attachment has the address.
func (s Subnet) isLeased(addr netip.Addr) bool {
	if slices.Contains(s.Addresses, addr) || s.DataDir == "" {
		return slices.Contains(s.Addresses, addr)
	}
	_, err := os.Stat(filepath.Join(s.DataDir, s.Network.Name, addr.String()))
	return err == nil
}

// Covers reports whether the host loses what it has, once it is connected to the subnet: an address, a
// next hop, or the network behind a route that is not wider than the subnet, and no fallback. What is at the network's own bridge
// or at the links of attachments stays, except a next hop whose address the host takes as the gateway.
func (s Subnet) Covers(t Taken) bool {
	switch {
	case !s.Gateway || !s.Prefix.Contains(t.Prefix.Addr()) || t.Owner != (names.Owner{}) || s.IsOwn(t):
		return false
	case s.Bridge != "" && t.Link == s.Bridge:
		return t.Kind == NextHop && t.Prefix.Addr() == s.Range.Gateway
	case t.Kind == Route:
		return t.Link != "" && (t.Prefix.Bits() > s.Prefix.Bits() || t.Prefix.Bits() == s.Prefix.Bits() && !t.Fallback)
	}
	return true
}

// RequireRoom returns an *allocnet.SubnetError for the first of the taken prefixes that the subnet covers.
func (s Subnet) RequireRoom(taken []Taken) error {
	for _, t := range taken {
		if s.Covers(t) && !s.isAttached(t.Link, taken) {
			return &allocnet.SubnetError{Network: s.Network.Name, File: s.Network.File, Subnet: s.Prefix, Taken: t.What}
		}
	}
	return nil
}

// isAttached reports whether a link is the interface of an attachment in the network namespace of the host, which
// CNI_NETNS_OVERRIDE permits.
func (s Subnet) isAttached(link string, taken []Taken) bool {
	return slices.ContainsFunc(taken, func(t Taken) bool { return t.Kind == Address && t.Link == link && s.isLeased(t.Prefix.Addr()) })
}

// RequireRoom is the method RequireRoom of each subnet of the networks.
func RequireRoom(networks []*conflist.Network, taken []Taken) error {
	for _, n := range networks {
		for _, s := range Of(n) {
			if err := s.RequireRoom(taken); err != nil {
				return err
			}
		}
	}
	return nil
}
