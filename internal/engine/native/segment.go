package native

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// segment is the link layer of a network: its bridge, and the subnets that hosts on it regard as directly
// connected, as far as the configuration names them.
type segment struct {
	network, bridge string
	vlan            int
	subnets         []netip.Prefix
}

// segmentOf reads the segment from a configuration. The plugins report what they cannot read.
func segmentOf(list *libcni.NetworkConfigList) segment {
	s := segment{network: list.Name}
	for _, p := range list.Plugins {
		var conf struct {
			Bridge string `json:"bridge"`
			VLAN   int    `json:"vlan"`
			IPAM   struct {
				Subnet string `json:"subnet"`
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
				Addresses []struct {
					Address string `json:"address"`
				} `json:"addresses"`
			} `json:"ipam"`
		}
		if json.Unmarshal(p.Bytes, &conf) != nil {
			continue
		}
		if p.Network.Type == "bridge" {
			s.bridge, s.vlan = conf.Bridge, conf.VLAN
			if s.bridge == "" {
				s.bridge = "cni0"
			}
		}
		s.add(conf.IPAM.Subnet)
		for _, set := range conf.IPAM.Ranges {
			for _, r := range set {
				s.add(r.Subnet)
			}
		}
		for _, a := range conf.IPAM.Addresses {
			s.add(a.Address)
		}
	}
	return s
}

func (s *segment) add(subnet string) {
	if p, err := netip.ParsePrefix(subnet); err == nil {
		s.subnets = append(s.subnets, p.Masked())
	}
}

// is reports whether two networks have the same link layer.
func (s *segment) is(other *segment) bool {
	return s.network == other.network || s.bridge != "" && s.bridge == other.bridge && s.vlan == other.vlan
}

// has reports whether an address is in a subnet of the network.
func (s *segment) has(address netip.Addr) bool {
	return slices.ContainsFunc(s.subnets, func(p netip.Prefix) bool { return p.Contains(address) })
}

// prefixOf returns the network of an address in a result.
func prefixOf(n *net.IPNet) netip.Prefix {
	address, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(address.Unmap(), ones).Masked()
}
