package hostsnap

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
)

// links are a host's links by index.
type links map[int]netlink.Link

// name returns the name of the link with an index, the index itself if there is
// no such link, or "" for index 0.
func (l links) name(index int) string {
	switch link, ok := l[index]; {
	case index == 0:
		return ""
	case ok:
		return link.Attrs().Name
	}
	return strconv.Itoa(index)
}

// isIdleBridge reports whether the link with an index is a bridge without
// ports.
func (l links) isIdleBridge(index int) bool {
	link, ok := l[index]
	if !ok || link.Type() != "bridge" {
		return false
	}
	for _, other := range l {
		if other.Attrs().MasterIndex == index {
			return false
		}
	}
	return true
}

// network collects links, addresses, routes and routing rules.
func (c *collector) network() error {
	list, err := retry.List(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	all := links{}
	for _, link := range list {
		all[link.Attrs().Index] = link
	}
	for index, link := range all {
		c.link(all, index, link)
	}
	return errors.Join(c.addresses(all), c.routes(all), c.rules())
}

func (c *collector) link(all links, index int, link netlink.Link) {
	attrs := link.Attrs()
	up, alias := "", ""
	if attrs.Flags&net.FlagUp != 0 {
		up = "up"
	}
	if attrs.Alias != "" {
		alias = strconv.Quote(attrs.Alias)
	}
	c.add(all.isIdleBridge(index), "link", attrs.Name, link.Type(), attrs.HardwareAddr.String(),
		"mtu", strconv.Itoa(attrs.MTU), up, labelled("master", all.name(attrs.MasterIndex)), labelled("alias", alias))
}

func (c *collector) addresses(all links) error {
	list, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, address := range list {
		if isIPv6LinkLocal(address.IP) || address.Flags&unix.IFA_F_TEMPORARY != 0 && address.IP.To4() == nil {
			continue
		}
		peer := ""
		if address.Peer != nil && !address.Peer.IP.Equal(address.IP) {
			peer = address.Peer.String()
		}
		c.add(all.isIdleBridge(address.LinkIndex), "address", all.name(address.LinkIndex), address.IPNet.String(),
			labelled("peer", peer))
	}
	return nil
}

func isIPv6LinkLocal(ip net.IP) bool {
	return ip.To4() == nil && (ip.IsLinkLocalUnicast() || ip.IsMulticast())
}

func (c *collector) routes(all links) error {
	everyTable := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	list, err := retry.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, everyTable, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, route := range list {
		if !isTransient(route) {
			own := route.Table == unix.RT_TABLE_MAIN || route.Table == unix.RT_TABLE_LOCAL
			c.add(own && all.isIdleBridge(route.LinkIndex), routeWords(all, route)...)
		}
	}
	return nil
}

// isTransient reports whether the kernel creates and removes the route by
// itself.
func isTransient(route netlink.Route) bool {
	switch {
	case route.Protocol == unix.RTPROT_RA, route.Protocol == unix.RTPROT_REDIRECT:
		return true
	case route.Protocol != unix.RTPROT_KERNEL:
		return false
	case route.Table == unix.RT_TABLE_LOCAL:
		return true
	}
	return route.Dst != nil && isIPv6LinkLocal(route.Dst.IP)
}

func routeWords(all links, route netlink.Route) []string {
	var hops, src, metric []string
	if route.Src != nil {
		src = []string{"src", route.Src.String()}
	}
	if route.Priority != 0 {
		metric = []string{"metric", strconv.Itoa(route.Priority)}
	}
	for _, hop := range route.MultiPath {
		hops = append(hops, "nexthop", gateway(hop.Gw, hop.Via), labelled("dev", all.name(hop.LinkIndex)))
	}
	words := []string{"route", tableName(route.Table), routeType(route.Type), destination(route),
		gateway(route.Gw, route.Via), labelled("dev", all.name(route.LinkIndex))}
	words = append(words, hops...)
	words = append(words, src...)
	words = append(words, "proto", route.Protocol.String(), "scope", route.Scope.String())
	return append(words, metric...)
}

func gateway(ip net.IP, via netlink.Destination) string {
	switch {
	case ip != nil:
		return "via " + ip.String()
	case via != nil:
		return "via " + via.String()
	}
	return ""
}

func tableName(table int) string {
	switch table {
	case unix.RT_TABLE_MAIN:
		return "main"
	case unix.RT_TABLE_LOCAL:
		return "local"
	case unix.RT_TABLE_DEFAULT:
		return "default"
	}
	return strconv.Itoa(table)
}

// routeType returns the name of a route type, or "" for unicast.
func routeType(kind int) string {
	names := map[int]string{unix.RTN_UNICAST: "", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast",
		unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole",
		unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw"}
	if name, ok := names[kind]; ok {
		return name
	}
	return "type " + strconv.Itoa(kind)
}

func destination(route netlink.Route) string {
	if route.Dst != nil {
		return route.Dst.String()
	}
	if route.Family == unix.AF_INET6 {
		return "::/0"
	}
	return "0.0.0.0/0"
}

func (c *collector) rules() error {
	for name, family := range map[string]int{"ip": netlink.FAMILY_V4, "ip6": netlink.FAMILY_V6} {
		list, err := retry.List(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil {
			return fmt.Errorf("list routing rules: %w", err)
		}
		for _, rule := range list {
			c.add(false, append([]string{"rule", name}, ruleWords(rule)...)...)
		}
	}
	return nil
}

func ruleWords(rule netlink.Rule) []string {
	from, to, mark := "all", "", ""
	if rule.Src != nil {
		from = rule.Src.String()
	}
	if rule.Dst != nil {
		to = rule.Dst.String()
	}
	if rule.Mark != 0 {
		mark = fmt.Sprintf("0x%x", rule.Mark)
	}
	return []string{strconv.Itoa(rule.Priority), "from", from, labelled("to", to), labelled("iif", rule.IifName),
		labelled("oif", rule.OifName), labelled("fwmark", mark), "lookup", tableName(rule.Table)}
}
