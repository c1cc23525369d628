package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/addresses"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// hostNetwork is what the host has at a prefix: a route or an address of a link.
type hostNetwork struct {
	prefix netip.Prefix
	link   string
	owner  names.Owner // of the link; the zero value if that is not known
	bridge bool        // the link is a bridge
	what   string
}

// subnetOf is a subnet of a network.
type subnetOf struct {
	network *conflist.Network
	pool    addresses.Pool
	bridge  string // "" for none
}

// checkSubnets compares the subnets of all networks with each other, and with the routes,
// the addresses and the name servers of the host.
func checkSubnets(_ context.Context, h *Host) (findings []Finding, err error) {
	subnets := h.subnets()
	taken, err := hostNetworks(h.announced())
	if err != nil {
		return nil, err
	}
	for i, s := range subnets {
		for _, other := range subnets[:i] {
			if other.network != s.network && other.pool.Subnet.Overlaps(s.pool.Subnet) {
				findings = append(findings, sharedSubnet(other, s)...)
			}
		}
		findings = append(findings, s.against(taken)...)
		if use := s.reserved(); use != "" {
			findings = append(findings, find("subnet-reserved", s.network.Name,
				fmt.Sprintf("subnet %s of network %q overlaps with %s", s.pool.Subnet, s.network.Name, use), s.changeSubnet()))
		}
	}
	servers, err := nameServers("/etc/resolv.conf")
	for _, s := range subnets {
		for _, server := range servers {
			if s.pool.Subnet.Contains(server) {
				findings = append(findings, find("resolver-in-subnet", s.network.Name,
					fmt.Sprintf("name server %s of /etc/resolv.conf is in subnet %s of network %q", server, s.pool.Subnet, s.network.Name), s.changeSubnet()))
			}
		}
	}
	return append(findings, h.outsideSubnets()...), err
}

// outsideSubnets returns a finding for each allocation with an address that is no longer in a
// subnet that flanneld has leased for the host.
func (h *Host) outsideSubnets() (findings []Finding) {
	for _, n := range h.Networks {
		pools, err := addresses.Pools(n)
		if n.Source == nil || err != nil {
			continue
		}
		for _, r := range h.records {
			for _, address := range addressesIn(&r, n.Name) {
				if !slices.ContainsFunc(pools, func(p addresses.Pool) bool { return p.Subnet.Contains(address) }) {
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
			if p, err := netip.ParsePrefix(a.Address); err == nil && itf.Network == network {
				list = append(list, p.Addr())
			}
		}
	}
	return list
}

// subnets returns the subnets of all networks. checkConfiguration reports ranges that
// cannot be read.
func (h *Host) subnets() (list []subnetOf) {
	for _, n := range h.Networks {
		pools, _ := addresses.Pools(n)
		for _, p := range pools {
			if p.Plugin != "bridge" && p.Plugin != "ptp" { // the others join networks of the host
				continue
			}
			s := subnetOf{network: n, pool: p, bridge: bridgeOf(n)}
			same := func(other subnetOf) bool { return other.network == n && other.pool.Subnet == p.Subnet }
			if !slices.ContainsFunc(list, same) {
				list = append(list, s)
			}
		}
	}
	return list
}

// bridgeOf returns the bridge of a network, or "" if it has none.
func bridgeOf(n *conflist.Network) string {
	for _, p := range n.List.Plugins {
		if p.Network.Type != "bridge" {
			continue
		}
		conf := struct {
			Bridge string `json:"bridge"`
		}{"cni0"}
		if json.Unmarshal(p.Bytes, &conf) == nil {
			return conf.Bridge
		}
	}
	return ""
}

// sharedSubnet returns a finding for two networks with overlapping subnets. The same subnet
// with the same bridge is one link layer, which is no black hole; but then the networks must
// not lease the same addresses.
func sharedSubnet(a, b subnetOf) []Finding {
	overlap := a.pool.Range.Contains(b.pool.Range.First) || b.pool.Range.Contains(a.pool.Range.First)
	object := a.network.Name + ", " + b.network.Name
	switch {
	case a.bridge != "" && a.bridge == b.bridge && a.pool.Subnet == b.pool.Subnet:
		if !overlap {
			return nil
		}
		return []Finding{find("subnet-shared", object, fmt.Sprintf("networks %q and %q lease the same addresses of subnet %s on bridge %s",
			a.network.Name, b.network.Name, a.pool.Subnet, a.bridge), "give them separate ranges (rangeStart, rangeEnd) in "+b.file())}
	}
	return []Finding{find("subnet-overlap", object, fmt.Sprintf("subnet %s of network %q overlaps with %s of network %q",
		b.pool.Subnet, b.network.Name, a.pool.Subnet, a.network.Name), b.changeSubnet())}
}

// against compares a subnet with what the host has.
func (s subnetOf) against(taken []hostNetwork) (findings []Finding) {
	var seen []string
	for _, t := range taken {
		if !t.prefix.Overlaps(s.pool.Subnet) || s.leased(t) || s.isTunnel(t) {
			continue
		}
		if s.bridge != "" && t.link == s.bridge {
			if f, ok := s.ownBridge(t); ok && !slices.Contains(seen, f.What) {
				seen, findings = append(seen, f.What), append(findings, f)
			}
			continue
		}
		// An address and the route that it has made are one finding.
		key := t.link + " " + t.prefix.Masked().String()
		if slices.Contains(seen, key) {
			continue
		}
		seen = append(seen, key)
		findings = append(findings, find("subnet-overlap", s.network.Name,
			fmt.Sprintf("subnet %s of network %q overlaps with %s", s.pool.Subnet, s.network.Name, t.what), s.giveWay(t)))
	}
	return append(findings, s.bridgeElsewhere(taken)...)
}

// giveWay returns the repair of an overlap. Another bridge with the address of the gateway is
// most likely the network's own one, which was renamed or had another name in its configuration.
func (s subnetOf) giveWay(t hostNetwork) string {
	if t.bridge && s.bridge != "" && t.prefix.Addr() == s.pool.Range.Gateway {
		return fmt.Sprintf("ip link del %s (if it is an earlier bridge of the network, under another name; then run: allocnet repair; otherwise %s)", t.link, s.changeSubnet())
	}
	return s.changeSubnet()
}

// special are the prefixes that no network can use (RFC 6890 and RFC 4291), and their uses.
var special = []struct {
	prefix netip.Prefix
	use    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "0.0.0.0/8, this host on this network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "127.0.0.0/8, the loopback addresses"},
	{netip.MustParsePrefix("169.254.0.0/16"), "169.254.0.0/16, the link-local addresses, among them that of metadata services"},
	{netip.MustParsePrefix("224.0.0.0/4"), "224.0.0.0/4, the multicast groups"},
	{netip.MustParsePrefix("240.0.0.0/4"), "240.0.0.0/4, which is reserved"},
	{netip.MustParsePrefix("::/127"), "::/127, the unspecified and the loopback address"},
	{netip.MustParsePrefix("fe80::/10"), "fe80::/10, the link-local addresses"},
	{netip.MustParsePrefix("ff00::/8"), "ff00::/8, the multicast groups"},
}

// reserved returns the use of a special prefix that the subnet overlaps with, or "".
func (s subnetOf) reserved() string {
	for _, r := range special {
		if r.prefix.Overlaps(s.pool.Subnet) {
			return r.use
		}
	}
	return ""
}

// leased reports whether what the host has is the route or the address of an attachment: of
// a leased address, or of the gateway. Leases of other state directories are in other files, but
// the links of their attachments name the network.
func (s subnetOf) leased(t hostNetwork) bool {
	if !t.prefix.IsSingleIP() {
		return false
	}
	if t.owner.OfNetwork(s.network.Name) {
		return true
	}
	_, err := os.Stat(filepath.Join(s.pool.DataDir, s.network.Name, t.prefix.Addr().String()))
	return err == nil || t.prefix.Addr() == s.pool.Range.Gateway && strings.HasPrefix(t.link, "veth")
}

// isTunnel reports whether what the host has is the address of flannel's tunnel: the first one
// of the host's subnet.
func (s subnetOf) isTunnel(t hostNetwork) bool {
	return s.network.Source != nil && t.prefix.IsSingleIP() && t.prefix.Addr() == s.pool.Subnet.Masked().Addr()
}

// ownBridge returns a finding for a prefix of the network's own bridge that is not its subnet.
func (s subnetOf) ownBridge(t hostNetwork) (f Finding, found bool) {
	if t.prefix.Masked() == s.pool.Subnet || t.prefix.IsSingleIP() || !t.prefix.Addr().IsValid() {
		return f, false
	}
	return find("bridge-subnet", s.network.Name, fmt.Sprintf("bridge %s has %s, but network %q has subnet %s",
		s.bridge, t.prefix, s.network.Name, s.pool.Subnet), s.dropBridge()), true
}

// bridgeElsewhere returns a finding if the bridge has only addresses of other subnets of the
// same family.
func (s subnetOf) bridgeElsewhere(taken []hostNetwork) []Finding {
	for _, t := range taken {
		if s.bridge == "" || t.link != s.bridge || !strings.HasPrefix(t.what, "address ") || t.prefix.Overlaps(s.pool.Subnet) {
			continue
		}
		if t.prefix.Addr().Is4() == s.pool.Subnet.Addr().Is4() {
			return []Finding{find("bridge-subnet", s.network.Name, fmt.Sprintf("bridge %s has address %s, which is not in subnet %s of network %q",
				s.bridge, t.prefix, s.pool.Subnet, s.network.Name), s.dropBridge())}
		}
	}
	return nil
}

func (s subnetOf) dropBridge() string {
	return "restore the former subnet in " + s.file() + ", or, once no allocation uses the bridge: ip link del " + s.bridge
}

// file names the place of the network's subnet.
func (s subnetOf) file() string {
	if s.network.File == "" {
		return "the setting subnets of /etc/allocnet/allocnetd.hcl"
	}
	return s.network.File
}

func (s subnetOf) changeSubnet() string {
	return "choose another subnet in " + s.file() + ", and set up its allocations again"
}

// announcement is a table with the protocol of the routes that the plugin routes writes into it.
type announcement struct {
	Table    int  `json:"table"`
	Protocol *int `json:"protocol"`
}

// announced returns a function that reports whether a route is one of the plugin routes.
func (h *Host) announced() func(*netlink.Route) bool {
	var all []announcement
	for _, n := range h.Networks {
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

// hostNetworks returns the routes of all tables but local, and the addresses of all links,
// without those of the loopback, link-local ones, default routes and those to leave out.
func hostNetworks(leftOut func(*netlink.Route) bool) (list []hostNetwork, err error) {
	routes, err := allRoutes() // before the links: see appendRoutes
	if err != nil {
		return nil, err
	}
	links, err := retry.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
		addrs, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, a := range addrs {
			list = appendNetwork(list, l, a.IPNet, fmt.Sprintf("address %s of %s", a.IPNet, l.Attrs().Name))
		}
	}
	return appendRoutes(list, routes, byIndex, leftOut), nil
}

// allRoutes returns the routes of all tables.
func allRoutes() ([]netlink.Route, error) {
	routes, err := retry.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// appendRoutes adds routes. The links were listed after them, so a route whose link is not in
// the list is gone with its link.
func appendRoutes(list []hostNetwork, routes []netlink.Route, byIndex map[int]netlink.Link, leftOut func(*netlink.Route) bool) []hostNetwork {
	for _, r := range routes {
		if r.Dst == nil || r.Table == unix.RT_TABLE_LOCAL || leftOut(&r) || r.LinkIndex != 0 && byIndex[r.LinkIndex] == nil {
			continue
		}
		where := "without a link"
		if l := byIndex[r.LinkIndex]; l != nil {
			where = "through " + l.Attrs().Name
		}
		if r.Gw != nil {
			where = "via " + r.Gw.String() + " " + where
		}
		list = appendNetwork(list, byIndex[r.LinkIndex], r.Dst, fmt.Sprintf("route %s %s", r.Dst, where))
	}
	return list
}

func appendNetwork(list []hostNetwork, l netlink.Link, dst *net.IPNet, what string) []hostNetwork {
	addr, ok := netip.AddrFromSlice(dst.IP)
	bits, _ := dst.Mask.Size()
	p := netip.PrefixFrom(addr.Unmap(), bits)
	if !ok || bits == 0 || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsLoopback() || !p.IsValid() {
		return list
	}
	n := hostNetwork{prefix: p, what: what}
	if l != nil {
		n.link, n.bridge = l.Attrs().Name, l.Type() == "bridge"
		n.owner, _ = names.ParseOwner(l.Attrs().Alias)
		if l.Attrs().Flags&net.FlagLoopback != 0 {
			return list
		}
	}
	return append(list, n)
}

// nameServers returns the name servers of a resolver configuration.
func nameServers(file string) (list []netip.Addr, err error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			list = append(list, addr.WithZone("").Unmap())
		}
	}
	return list, nil
}
