package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/subnets"
)

const sysctls = "/proc/sys/net/"

// sysctl returns the value of a sysctl below net, or "" if it does not exist.
func sysctl(name string) (string, error) {
	value, err := os.ReadFile(sysctls + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(value)), err
}

// dotted returns the name of a sysctl below net as the program sysctl takes it: the name of
// an interface may contain dots.
func dotted(name string) string { return "net/" + name }

func set(name, value string) string { return "sysctl -w " + dotted(name) + "=" + value }

func setter(name, value string) func(context.Context) error {
	return func(context.Context) error { return rtnl.SetSysctl(dotted(name), value) }
}

// checkSysctls looks at the sysctls on which allocations that are set up depend.
func checkSysctls(ctx context.Context, h *Host) (findings []Finding, err error) {
	links, err := h.hostLinks()
	if err != nil {
		return nil, err
	}
	forwarding, err := h.forwarding(links)
	findings = append(findings, forwarding...)
	filter, filterErr := h.rpFilter(links)
	localnet, localnetErr := h.routeLocalnet(links)
	open, openErr := h.openLocalnet(ctx, links)
	ipv6, ipv6Err := h.ipv6()
	routers, routersErr := h.routers()
	return slices.Concat(findings, filter, localnet, open, ipv6, routers), errors.Join(err, filterErr, localnetErr, openErr, ipv6Err, routersErr)
}

// hostLink is a link of the host through which allocations are reached.
type hostLink struct {
	name      string
	published bool // an allocation behind it has host ports
}

// hostLinks returns the links through which the allocations that are set up are reached: the
// bridges of their networks, and their veths with addresses routed to them.
func (h *Host) hostLinks() (list []hostLink, err error) {
	links, err := retry.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	published := map[string]string{} // the network that publishes the ports, by container
	for _, r := range h.ready() {
		if len(r.Ports) > 0 && len(r.Networks) > 0 {
			published[cmp.Or(r.ContainerID, r.ID)] = r.Networks[0].Network
		}
	}
	byIndex := map[int]string{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs().Name
	}
	found := map[string]bool{}
	for _, l := range links {
		owner, ok := names.ParseOwner(l.Attrs().Alias)
		if !ok || l.Type() != "veth" || !h.routes(owner) { // an ifb of the plugin bandwidth has no addresses behind it
			continue
		}
		name := l.Attrs().Name
		if master := byIndex[l.Attrs().MasterIndex]; master != "" {
			name = master
		}
		network := published[owner.ID]
		found[name] = found[name] || network != "" && owner.OfNetwork(network)
	}
	for name, ports := range found {
		list = append(list, hostLink{name, ports})
	}
	slices.SortFunc(list, func(a, b hostLink) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// routes reports whether the host forwards the packets of an attachment: not if its bridge is no gateway, so that
// others on the same link do.
func (h *Host) routes(owner names.Owner) bool {
	for _, n := range h.Networks {
		if owner.OfNetwork(n.Name) {
			return subnets.IsGateway(n)
		}
	}
	return true
}

// families returns which families the allocations have whose packets the host forwards.
func (h *Host) families() (v4, v6 bool) {
	for _, r := range h.ready() {
		if r.Status == nil {
			continue
		}
		for _, i := range r.Status.Interfaces {
			if !h.routes(names.Owner{Network: i.Network}) {
				continue
			}
			for _, a := range i.Addresses {
				v6 = v6 || strings.Contains(a.Address, ":")
				v4 = v4 || !strings.Contains(a.Address, ":")
			}
		}
	}
	return v4, v6
}

func (h *Host) forwarding(links []hostLink) (findings []Finding, err error) {
	if len(links) == 0 {
		return nil, nil
	}
	v4, v6 := h.families()
	var switches []string
	var errs []error
	if v4 {
		ups, err := uplinks()
		errs = append(errs, err)
		for _, l := range links {
			ups = append(ups, l.name)
		}
		switches = append(switches, "ipv4/ip_forward")
		for _, name := range ups {
			switches = append(switches, "ipv4/conf/"+name+"/forwarding")
		}
	}
	if v6 {
		switches = append(switches, "ipv6/conf/all/forwarding")
	}
	for _, name := range switches {
		value, err := sysctl(name)
		errs = append(errs, err)
		if value != "0" {
			continue
		}
		step, fix := set(name, "1"), setter(name, "1")
		switch name {
		case "ipv4/ip_forward":
			fix = h.forwarder(true, false)
		case "ipv6/conf/all/forwarding":
			step, fix = "allocnet repair (which keeps the routes of router advertisements)", h.forwarder(false, true)
		}
		findings = append(findings, find("forwarding-off", dotted(name), dotted(name)+" is 0, and allocations are set up", step).withFix(fix))
		if name == "ipv4/ip_forward" { // it sets those of all interfaces
			break
		}
	}
	return findings, errors.Join(errs...)
}

// rpFilter reports strict filters on links through which packets may come that leave through
// another link: those of allocations with several networks, and uplinks if there are several.
func (h *Host) rpFilter(links []hostLink) (findings []Finding, err error) {
	var candidates []string
	if slices.ContainsFunc(h.ready(), func(r *configurator.Record) bool { return len(r.Networks) > 1 }) {
		for _, l := range links {
			candidates = append(candidates, l.name)
		}
	}
	ups, err := uplinks()
	if len(ups) > 1 {
		candidates = append(candidates, ups...)
	}
	all, allErr := sysctl("ipv4/conf/all/rp_filter")
	errs := []error{err, allErr}
	for _, name := range candidates {
		value, err := sysctl("ipv4/conf/" + name + "/rp_filter")
		errs = append(errs, err)
		if max(all, value) == "1" { // the higher value counts: 0 none, 1 strict, 2 loose
			findings = append(findings, find("rp-filter", name, "reverse path filtering of "+name+" is strict (1)", set("ipv4/conf/"+name+"/rp_filter", "2")))
		}
	}
	return findings, errors.Join(errs...)
}

// uplinks returns the links of default routes.
func uplinks() (list []string, err error) {
	routes, err := retry.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if ones := r.Dst; ones != nil && ones.String() != "0.0.0.0/0" {
			continue
		}
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil && !slices.Contains(list, l.Attrs().Name) {
			list = append(list, l.Attrs().Name)
		}
	}
	return list, nil
}

// routeLocalnet reports links with published ports that route no loopback addresses.
func (h *Host) routeLocalnet(links []hostLink) (findings []Finding, err error) {
	all, err := sysctl("ipv4/conf/all/route_localnet")
	errs := []error{err}
	v4, _ := h.families()
	for _, l := range links {
		name := "ipv4/conf/" + l.name + "/route_localnet"
		value, err := sysctl(name)
		errs = append(errs, err)
		if v4 && l.published && all == "0" && value == "0" {
			findings = append(findings, find("route-localnet", dotted(name), dotted(name)+" is 0, and an allocation behind it has published ports", set(name, "1")).withFix(setter(name, "1")))
		}
	}
	return findings, errors.Join(errs...)
}

// openLocalnet reports links that route loopback addresses, unless allocnet's guard keeps
// other hosts out. CHECK reports a missing guard of allocations' own links.
func (h *Host) openLocalnet(ctx context.Context, links []hostLink) (findings []Finding, err error) {
	rules, err := ruleset.Open()
	if err != nil {
		return nil, err
	}
	guarded := rules.CheckGuard(ctx, ruleset.IPv4) == nil
	if err := rules.Close(); err != nil || guarded {
		return nil, err
	}
	confs, err := filepath.Glob(sysctls + "ipv4/conf/*/route_localnet")
	errs := []error{err}
	for _, file := range confs {
		link := filepath.Base(filepath.Dir(file))
		if link == "lo" || link == "default" || slices.ContainsFunc(links, func(l hostLink) bool { return l.name == link }) || isEmptyBridge(link) {
			continue
		}
		name := "ipv4/conf/" + link + "/route_localnet"
		value, err := sysctl(name)
		errs = append(errs, err)
		if value == "1" {
			findings = append(findings, find("route-localnet-open", dotted(name), dotted(name)+" is 1", set(name, "0")+" (if no program needs it)"))
		}
	}
	return findings, errors.Join(errs...)
}

// isEmptyBridge reports whether a link is a bridge without ports: no packet arrives there.
// Bridges of networks stay when their last allocation is torn down.
func isEmptyBridge(link string) bool {
	bridge, err := netlink.LinkByName(link)
	if err != nil || bridge.Type() != "bridge" {
		return false
	}
	links, err := retry.List(netlink.LinkList)
	return err == nil && !slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex == bridge.Attrs().Index })
}

// isOwnBridge reports whether a link is the bridge of a network, which stays when its last
// allocation is torn down.
func isOwnBridge(h *Host, link string) bool {
	for _, n := range h.Networks {
		if subnets.BridgeOf(n) == link {
			return true
		}
	}
	return false
}

// ipv6 reports networks with IPv6 subnets on a host whose kernel has no IPv6. If it is only switched off by sysctls, plugins
// switch it on for their links.
func (h *Host) ipv6() (findings []Finding, err error) {
	if value, err := sysctl("ipv6/conf/default/disable_ipv6"); err != nil || value != "" {
		return nil, err
	}
	return h.withoutIPv6(), nil
}

// withoutIPv6 is ipv6 of a kernel that has no IPv6.
func (h *Host) withoutIPv6() (findings []Finding) {
	for _, s := range h.subnets() {
		if s.Prefix.Addr().Is6() && s.Network.File != "" || len(h.ready()) > 0 && s.Prefix.Addr().Is6() {
			findings = append(findings, find("ipv6-disabled", s.Network.Name, fmt.Sprintf("the kernel has no IPv6, but network %q has subnet %s", s.Network.Name, s.Prefix),
				"boot without ipv6.disable=1, or remove the IPv6 subnet"))
		}
	}
	return findings
}
