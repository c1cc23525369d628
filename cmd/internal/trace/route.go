package trace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/trace/probe"
)

// route looks up the host's route to the allocation.
func (f *tracer) route(context.Context) error {
	const name = "route"
	_, link, err := routeTo(f.Address)
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return f.ends(name, "allocnet repair restores it", "the host has no route to %s", f.Address)
	case err != nil: // a route of type blackhole, unreachable or prohibit
		return f.ends(name, fmt.Sprintf("find the route and remove it: ip route show table all; for one to this address alone: ip route del blackhole %s", f.Address),
			"a route of the host refuses packets to %s: %v", f.Address, err)
	}
	for _, itf := range f.Record.Status.Interfaces {
		if itf.Sandbox == "" && itf.Name == link {
			f.add(name, OK, "", "%s is reached over %s", f.Address, link)
			return nil
		}
	}
	gone, err := f.goneLink()
	switch {
	case err != nil:
		return err
	case gone != "":
		return f.linkGone(gone)
	case !f.hasRoute():
		return f.ends(name, "allocnet repair restores it", "the host has no route to %s: packets leave over %s by a less specific one", f.Address, link)
	}
	return f.ends(name, fmt.Sprintf("find out who added it: ip route get fibmatch %s", f.Address),
		"%s is routed over %s, which is no interface of the allocation", f.Address, link)
}

// hasRoute reports whether the route of the host to the allocation is at least as specific as that to its network.
func (f *tracer) hasRoute() bool {
	routes, err := netlink.RouteGetWithOptions(f.Address.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		return err != nil // an older kernel does not tell
	}
	bits, _ := maskOf(routes[0])
	for _, itf := range f.Record.Status.Interfaces {
		for _, a := range itf.Addresses {
			if p, err := netip.ParsePrefix(a.Address); err == nil && itf.Sandbox != "" && p.Addr().Unmap() == f.Address {
				return bits >= p.Bits()
			}
		}
	}
	return true
}

// maskOf returns the length of the prefix to which a route leads.
func maskOf(r netlink.Route) (ones, bits int) {
	if r.Dst == nil {
		return 0, 0
	}
	return r.Dst.Mask.Size()
}

// routed looks whether the kernel routed the probe to the allocation.
func (f *tracer) routed(context.Context) error {
	const name = "routing"
	if !f.sent {
		return nil
	}
	if f.result.Refused != nil {
		return f.ends(name, fmt.Sprintf("ip route get %s from %s", f.path.Host.Addr(), f.path.From.Addr()), "the host does not send to %s: %v", f.path.Host, f.result.Refused)
	}
	first := probe.Output
	if f.path.Link != "" {
		first = probe.Prerouting
	}
	if _, began := passed(f.result.Host, probe.Request, first); !began {
		return f.ends(name, "nft list ruleset netdev; tc filter show dev "+f.path.Link+" ingress; ip link show "+f.path.Link,
			"the probe did not come as far as the hook %s: %s is down, or traffic control or a table of the family netdev took it", first, f.path.Link)
	}
	if at, here := passed(f.result.Host, probe.Request, probe.Input); here {
		return f.ends(name, "allocnet doctor; nft list ruleset", "the probe is delivered to the host itself, at %s: it was not redirected to the allocation", at.Destination)
	}
	if at, out := passed(f.result.Host, probe.Request, probe.Postrouting); out {
		if at.Destination.Addr() != f.Address {
			return f.ends(name, "find out who redirects it: iptables-save -t nat; nft list ruleset",
				"the probe is redirected to %s, which is not the allocation", at.Destination)
		}
		return nil
	}
	if _, out := passed(f.result.Host, probe.Request, probe.Forward); out || f.dropped() {
		return nil // the chains of that hook follow
	}
	if first == probe.Output {
		return f.ends(name, "ip route get "+f.Address.String(), "the host has no way for the probe behind the hook output")
	}
	return f.notForwarded(name, f.path.From.Addr(), f.Address, f.path.Link)
}

// dropped reports whether a chain of the host dropped the probe.
func (f *tracer) dropped() bool {
	for i := range f.result.Host {
		if p := &f.result.Host[i]; p.Kind == probe.Request && p.Drops() {
			return true
		}
	}
	return false
}

// notForwarded says why the kernel drops a packet between the hooks prerouting and forward.
func (f *tracer) notForwarded(name string, from, to netip.Addr, link string) error {
	// ip_forward sets the value of each link, so it comes first.
	switches := []string{"net/ipv4/ip_forward", "net/ipv4/conf/" + link + "/forwarding"}
	if to.Is6() {
		switches = []string{"net/ipv6/conf/all/forwarding"}
	}
	off := slices.IndexFunc(switches, func(name string) bool { return sysctl(name) == "0" })
	_, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Iif: link, SrcAddr: from.AsSlice()})
	switch {
	case filtersReversePath(from, link):
		return f.ends(name, fmt.Sprintf("sysctl net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.%s.rp_filter=2", link),
			"reverse path filtering drops packets from %s on %s: the route to it is another one", from, link)
	case off >= 0:
		return f.ends(name, "sysctl "+switches[off]+"=1, or allocnet doctor --fix", "the host does not forward from %s on %s to %s: %s is 0", from, link, to, switches[off])
	case err != nil:
		return f.ends(name, fmt.Sprintf("ip route get %s from %s iif %s", to, from, link), "the host does not forward from %s on %s to %s: %v", from, link, to, err)
	case legacyTables(to):
		return f.ends(name, legacyRemedy(to), "the host drops packets from %s on %s, probably by a rule of legacy iptables, which cannot be traced", from, link)
	}
	return f.ends(name, "nft list hooks shows what else sees packets", "the host drops packets from %s on %s between the hooks prerouting and forward", from, link)
}

// sysctl returns the value at a path below /proc/sys, of the network namespace of the
// calling thread; "" if there is none.
func sysctl(path string) string {
	value, _ := os.ReadFile(filepath.Join("/proc/sys", path))
	return strings.TrimSpace(string(value))
}

// legacyTables reports whether legacy iptables has tables for the family of an address.
func legacyTables(of netip.Addr) bool {
	file := "/proc/thread-self/net/ip_tables_names"
	if of.Is6() {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	tables, err := os.ReadFile(file)
	return err == nil && len(tables) > 0
}

// legacyRemedy is the command that shows the rules of legacy iptables.
func legacyRemedy(of netip.Addr) string {
	if of.Is6() {
		return "ip6tables-legacy-save -c"
	}
	return "iptables-legacy-save -c"
}

// filtersReversePath reports whether strict reverse path filtering drops packets from an
// address on a link. Since Linux 6.13 the kernel gives the same error for all reasons.
func filtersReversePath(from netip.Addr, link string) bool {
	if !from.Is4() {
		return false // IPv6 has none but rules of firewalls
	}
	strict := false
	for _, name := range []string{"all", link} {
		switch sysctl("net/ipv4/conf/" + name + "/rp_filter") {
		case "1":
			strict = true
		case "2":
			return false // the larger value holds
		}
	}
	_, back, err := routeTo(from)
	return strict && (err != nil || back != link)
}

// wayBack looks up the route of the answers.
func (f *tracer) wayBack(context.Context) error {
	const name = "way back"
	client := f.path.From.Addr()
	if t := f.result.Tracked; t != nil {
		client = t.AnswersTo.Addr() // of the host, if the source is translated
	}
	if !client.IsValid() || client.IsLoopback() {
		return nil // the host's own connections come from the gateway
	}
	return f.within(func() error {
		_, link, err := routeTo(client)
		if err != nil {
			return f.ends(name, "add a default route to the network, or set the allocation up again", "%s has no route to %s", f.Record.Netns, client)
		}
		f.add(name, OK, "", "answers to %s leave over %s", client, link)
		return nil
	})
}
