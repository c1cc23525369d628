package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/subnets"
)

// subnetOf is a subnet of a network, with the findings about it.
type subnetOf struct {
	subnets.Subnet
	isCreated func(bridge string) bool // by an ADD
}

// checkSubnets compares the subnets of all networks with each other, and with the routes,
// the addresses and the name servers of the host.
func checkSubnets(_ context.Context, h *Host) (findings []Finding, err error) {
	all := h.subnets()
	taken, err := subnets.OfHost(subnets.Announced(h.Networks))
	if err != nil {
		return nil, err
	}
	for i, s := range all {
		for _, other := range all[:i] {
			if other.Network != s.Network && other.Prefix.Overlaps(s.Prefix) {
				findings = append(findings, sharedSubnet(other, s)...)
			}
		}
		findings = append(findings, s.against(taken)...)
		if use := names.ReservedPrefix(s.Prefix); use != "" {
			findings = append(findings, find("subnet-reserved", s.Network.Name,
				fmt.Sprintf("subnet %s of network %q overlaps with %s", s.Prefix, s.Network.Name, use), s.changeSubnet()))
		}
	}
	servers, err := subnets.NameServers("/etc/resolv.conf")
	for _, s := range all {
		for _, server := range servers {
			if s.Prefix.Contains(server) {
				findings = append(findings, find("resolver-in-subnet", s.Network.Name,
					fmt.Sprintf("name server %s of /etc/resolv.conf is in subnet %s of network %q", server, s.Prefix, s.Network.Name), s.changeSubnet()))
			}
		}
	}
	return append(findings, h.outsideSubnets()...), err
}

// outsideSubnets returns a finding for each allocation with an address that is no longer in a
// subnet that flanneld has leased for the host.
func (h *Host) outsideSubnets() (findings []Finding) {
	for _, n := range h.Networks {
		pools, err := subnets.Pools(n)
		if n.Source == nil || err != nil {
			continue
		}
		for _, r := range h.records {
			for _, address := range addressesIn(&r, n.Name) {
				if !slices.ContainsFunc(pools, func(p subnets.Pool) bool { return p.Subnet.Contains(address) }) {
					findings = append(findings, find("address-outside-subnet", r.ID,
						fmt.Sprintf("allocation %q has address %s, which is not in the present subnet of network %q", r.ID, address, n.Name),
						"allocnet teardown "+r.ID+", then set it up again"))
				}
			}
		}
	}
	return findings
}

// addressesIn returns the addresses of an allocation in a network.
func addressesIn(r *configurator.Record, network string) (list []netip.Addr) {
	if r.Status == nil {
		return nil
	}
	for _, itf := range r.Status.Interfaces {
		for _, a := range itf.Addresses {
			if p, err := netip.ParsePrefix(a.Address); err == nil && itf.Network == network && !slices.Contains(list, p.Addr()) {
				list = append(list, p.Addr())
			}
		}
	}
	return list
}

// subnets returns the subnets of all networks. checkConfiguration reports ranges that
// cannot be read.
func (h *Host) subnets() (list []subnetOf) {
	created := bridges.In(h.StateDir)
	isCreated := func(bridge string) bool {
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return false
		}
		is, err := created.Created(bridge, link.Attrs().Index)
		return is && err == nil // nothing is deleted because of a record that cannot be read
	}
	for _, n := range h.Networks {
		for _, s := range subnets.Of(n) {
			list = append(list, subnetOf{s, isCreated})
		}
	}
	return list
}

// sharedSubnet returns a finding for two networks with overlapping subnets. The same subnet
// with the same bridge is one link layer, which is no black hole; but then the networks must
// not lease the same addresses.
func sharedSubnet(a, b subnetOf) []Finding {
	overlap := a.Range.Contains(b.Range.First) || b.Range.Contains(a.Range.First)
	object := a.Network.Name + ", " + b.Network.Name
	switch {
	case a.Bridge != "" && a.Bridge == b.Bridge && a.Prefix == b.Prefix:
		if !overlap {
			return nil
		}
		return []Finding{find("subnet-shared", object, fmt.Sprintf("networks %q and %q lease the same addresses of subnet %s on bridge %s",
			a.Network.Name, b.Network.Name, a.Prefix, a.Bridge), "give them separate ranges (rangeStart, rangeEnd) in "+b.file())}
	}
	return []Finding{find("subnet-overlap", object, fmt.Sprintf("subnet %s of network %q overlaps with %s of network %q",
		b.Prefix, b.Network.Name, a.Prefix, a.Network.Name), b.changeSubnet())}
}

// against compares a subnet with what the host has.
func (s subnetOf) against(taken []subnets.Taken) (findings []Finding) {
	if !s.Gateway { // the host has no address in the network
		return nil
	}
	var seen []string
	for _, t := range taken {
		if !t.Prefix.Overlaps(s.Prefix) || s.IsOwn(t) {
			continue
		}
		if s.Bridge != "" && t.Link == s.Bridge {
			if f, ok := s.ownBridge(t); ok && !slices.Contains(seen, f.What) {
				seen, findings = append(seen, f.What), append(findings, f)
			}
			continue
		}
		// An address and the route that it has made are one finding.
		key := t.Link + " " + t.Prefix.Masked().String()
		if slices.Contains(seen, key) {
			continue
		}
		seen = append(seen, key)
		findings = append(findings, find("subnet-overlap", s.Network.Name,
			fmt.Sprintf("subnet %s of network %q overlaps with %s", s.Prefix, s.Network.Name, t.What), s.giveWay(t)))
	}
	return append(findings, s.bridgeElsewhere(taken)...)
}

// giveWay returns the repair of an overlap. Another bridge with the address of the gateway is
// most likely the network's own one, which was renamed or had another name in its configuration.
func (s subnetOf) giveWay(t subnets.Taken) string {
	if t.Bridge && s.Bridge != "" && t.Prefix.Addr() == s.Range.Gateway && s.isCreated(t.Link) {
		return fmt.Sprintf("ip link del %s (if it is an earlier bridge of the network, under another name; then run: allocnet repair; otherwise %s)", t.Link, s.changeSubnet())
	}
	return s.changeSubnet()
}

// ownBridge returns a finding for a prefix of the network's own bridge that is not its subnet.
func (s subnetOf) ownBridge(t subnets.Taken) (f Finding, found bool) {
	if t.Prefix.Masked() == s.Prefix || t.Prefix.IsSingleIP() || !t.Prefix.Addr().IsValid() {
		return f, false
	}
	return find("bridge-subnet", s.Network.Name, fmt.Sprintf("bridge %s has %s, but network %q has subnet %s",
		s.Bridge, t.Prefix, s.Network.Name, s.Prefix), s.dropBridge()), true
}

// bridgeElsewhere returns a finding if the bridge has only addresses of other subnets of the
// same family.
func (s subnetOf) bridgeElsewhere(taken []subnets.Taken) []Finding {
	for _, t := range taken {
		if s.Bridge == "" || t.Link != s.Bridge || t.Kind != subnets.Address || t.Prefix.Overlaps(s.Prefix) {
			continue
		}
		if t.Prefix.Addr().Is4() == s.Prefix.Addr().Is4() {
			return []Finding{find("bridge-subnet", s.Network.Name, fmt.Sprintf("bridge %s has address %s, which is not in subnet %s of network %q",
				s.Bridge, t.Prefix, s.Prefix, s.Network.Name), s.dropBridge())}
		}
	}
	return nil
}

func (s subnetOf) dropBridge() string {
	if !s.isCreated(s.Bridge) {
		return "choose another bridge, or a subnet of this one, in " + s.file()
	}
	return "restore the former subnet in " + s.file() + ", or, once no allocation uses the bridge: ip link del " + s.Bridge
}

// file names the place of the network's subnet.
func (s subnetOf) file() string {
	if s.Network.File == "" {
		return "the setting subnets of /etc/allocnet/allocnetd.hcl"
	}
	return s.Network.File
}

func (s subnetOf) changeSubnet() string {
	return "choose another subnet in " + s.file() + ", and set up its allocations again"
}
