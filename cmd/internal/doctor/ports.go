package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostports"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
	"github.com/allocnet/allocnet/portmap"
)

// checkListeners looks for processes of the host that listen on published host ports.
func checkListeners(_ context.Context, h *Host) (findings []Finding, err error) {
	var all []portmap.Mapping
	for _, r := range h.ready() {
		all = append(all, r.Ports...)
	}
	found, err := hostports.Look(all)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	var inodes []uint32
	for _, l := range found {
		inodes = append(inodes, l.Inode)
	}
	processes, reserved := sockdiag.Processes(inodes...), hostports.FindReservations(found)
	for _, r := range h.ready() {
		is4 := func(a netip.Addr) bool { return a.Is4() }
		is6 := func(a netip.Addr) bool { return a.Is6() }
		own := addressesOf(r)
		others := reserved.Others(found, cmp.Or(r.ContainerID, r.ID))
		for _, p := range hostports.Among(others, r.Ports, slices.ContainsFunc(own, is4), slices.ContainsFunc(own, is6)) {
			who, stop := fmt.Sprintf("a process of user %d", p.Listener.UID), "end that process"
			if process, known := processes[p.Listener.Inode]; known {
				who, stop = fmt.Sprintf("%s (process %d)", process.Name, process.PID), fmt.Sprintf("kill %d", process.PID)
			}
			stop += " (or let it listen on another port, or publish another host port)"
			if container := reserved[p.Listener.Inode]; container != "" {
				who += " of container " + container
				stop = "publish another host port of one of the two containers: the runtime of the other one reserves this port"
			}
			port := portText(p.Mapping)
			findings = append(findings, find("port-listener", "port "+port,
				fmt.Sprintf("%s listens on %s, and allocation %q publishes host port %s", who, p.Listener.Address, r.ID, port), stop))
		}
	}
	return findings, nil
}

// addressesOf returns the addresses of an allocation.
func addressesOf(r *configurator.Record) (list []netip.Addr) {
	if r.Status == nil {
		return nil
	}
	for _, i := range r.Status.Interfaces {
		for _, a := range i.Addresses {
			p, err := netip.ParsePrefix(a.Address)
			if err != nil || i.Sandbox == "" || p.Addr().IsLoopback() || slices.Contains(list, p.Addr().Unmap()) { // a virtual machine has the same
				continue
			}
			list = append(list, p.Addr().Unmap())
		}
	}
	return list
}

func portText(m portmap.Mapping) string { return fmt.Sprintf("%d/%s", m.HostPort, m.Protocol) }

// packet is a packet of a client on its way to an allocation.
type packet struct {
	what     string     // that it is for
	trace    string     // argument of `allocnet trace`; "" without a host port
	addr     netip.Addr // its destination; zero for any address of the host
	port     uint16     // its destination port; 0 for any
	original uint16     // the host port; 0 for none
	protocol uint8
	links    []string // of the host, over which it can leave
}

// packets returns the packets to allocations before and after they are redirected.
func (h *Host) packets() (before, after []packet) {
	protocols := map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132}
	for _, r := range h.ready() {
		var links []string
		if r.Status != nil {
			for _, i := range r.Status.Interfaces {
				if i.Sandbox == "" {
					links = append(links, i.Name)
				}
			}
		}
		for _, addr := range addressesOf(r) {
			after = append(after, packet{what: fmt.Sprintf("address %s of allocation %q", addr, r.ID), addr: addr, links: links})
			for _, m := range r.Ports {
				hostIP, _ := netip.ParseAddr(m.HostIP)
				if hostIP.IsUnspecified() {
					hostIP = netip.Addr{}
				}
				p := packet{
					what: fmt.Sprintf("host port %s of allocation %q", portText(m), r.ID), trace: portText(m),
					addr: hostIP.Unmap(), port: uint16(m.HostPort), original: uint16(m.HostPort), protocol: protocols[m.Protocol], links: links,
				}
				before = append(before, p)
				p.addr, p.port = addr, uint16(m.ContainerPort)
				after = append(after, p)
			}
		}
	}
	return before, after
}

// maxCalls is how deep the search follows calls of chains.
const maxCalls = 3

// dropSearch is a search for rules that drop packets to single allocations.
type dropSearch struct {
	packets []packet
	// rules returns the rules of a chain.
	rules func(chain string) ([]foreignRule, error)
	// found is called for each rule that may drop packets of the list.
	found func(chain string, r *foreignRule, dropped []packet)
	seen  map[string]bool
}

// chain searches in a chain that sees only packets of which a calling rule is true.
func (s *dropSearch) chain(name string, caller *conditions, calls int) error {
	rules, err := s.rules(name)
	if err != nil {
		return err
	}
	for i := range rules {
		r := &rules[i]
		all := r.conditions.with(caller)
		if r.calls != "" && calls < maxCalls {
			if err := s.chain(r.calls, &all, calls+1); err != nil {
				return err
			}
		}
		if !r.drops || s.seen[name+r.text] {
			continue
		}
		dropped := slices.DeleteFunc(slices.Clone(s.packets), func(p packet) bool { return !all.takes(&p) })
		if len(dropped) > 0 {
			s.seen[name+r.text] = true
			s.found(name, r, dropped)
		}
	}
	return nil
}

// portDrops reports rules of other programs that drop or reject packets to single published
// ports or to addresses of allocations. It does not evaluate the rules: another one may
// accept the packets before, or a condition may not be true.
func (h *Host) portDrops(ctx context.Context, chains []baseChain) (findings []Finding, err error) {
	before, after := h.packets()
	if len(after) == 0 {
		return nil, nil
	}
	err = netfilter.Look(ctx, func(c *nftables.Conn) error {
		findings = nil
		for _, base := range chains {
			if isOurs(base.Table.Name) || base.Type == nftables.ChainTypeNAT {
				continue
			}
			packets, from := seenBy(base.Chain, before, after)
			search := dropSearch{packets: packets, seen: map[string]bool{}, rules: nftRules(ctx, c, base), found: func(chain string, r *foreignRule, dropped []packet) {
				where := familyName(base.Table.Family) + " " + base.Table.Name + " " + chain
				findings = append(findings, dropFinding(where, r, dropped, from, "nft delete rule "+where+" "+r.text))
			}}
			if len(packets) == 0 {
				continue
			}
			if err := search.chain(base.Name, &conditions{}, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read rules of nftables: %w", err)
	}
	legacy, err := legacyPortDrops(ctx, before, after)
	return append(findings, legacy...), err
}

// ofHost are packets that the host itself sends: `allocnet trace` follows them without --from.
const ofHost = "packets of this host"

// seenBy returns the packets that a base chain sees, and who sends them.
func seenBy(c *nftables.Chain, before, after []packet) (seen []packet, from string) {
	if c.Priority == nil {
		return nil, ""
	}
	redirected := *c.Priority >= *nftables.ChainPriorityNATDest
	switch *c.Hooknum {
	case *nftables.ChainHookForward, *nftables.ChainHookPostrouting:
		seen, from = after, "packets"
	case *nftables.ChainHookPrerouting:
		seen, from = before, "packets of other hosts"
	case *nftables.ChainHookOutput:
		seen, from = before, ofHost
	}
	if from != "" && redirected {
		seen = after
	}
	is6 := c.Table.Family == nftables.TableFamilyIPv6
	if c.Table.Family == nftables.TableFamilyINet {
		return seen, from
	}
	return slices.DeleteFunc(slices.Clone(seen), func(p packet) bool { return p.addr.IsValid() && p.addr.Is6() != is6 }), from
}

// legacyPortDrops is portDrops for the tables of the legacy iptables.
func legacyPortDrops(ctx context.Context, before, after []packet) (findings []Finding, err error) {
	bases := map[string]*nftables.Chain{
		"PREROUTING":  {Hooknum: nftables.ChainHookPrerouting},
		"FORWARD":     {Hooknum: nftables.ChainHookForward},
		"OUTPUT":      {Hooknum: nftables.ChainHookOutput},
		"POSTROUTING": {Hooknum: nftables.ChainHookPostrouting},
	}
	priorities := map[string]*nftables.ChainPriority{
		"raw": nftables.ChainPriorityRaw, "mangle": nftables.ChainPriorityMangle,
		"filter": nftables.ChainPriorityFilter, "security": nftables.ChainPrioritySecurity,
	}
	for f, family := range map[iptables.Family]nftables.TableFamily{iptables.IPv4: nftables.TableFamilyIPv4, iptables.IPv6: nftables.TableFamilyIPv6} {
		for table, priority := range priorities {
			lines, err := legacyRules(ctx, f, table)
			if err != nil {
				return findings, err
			}
			for name, base := range bases {
				base.Table, base.Priority = &nftables.Table{Family: family, Name: table}, priority
				packets, from := seenBy(base, before, after)
				search := dropSearch{packets: packets, seen: map[string]bool{}, rules: rulesOf(lines), found: func(chain string, r *foreignRule, dropped []packet) {
					where := fmt.Sprintf("%s -t %s, %s", legacyProgram(f), table, chain)
					findings = append(findings, dropFinding(where, r, dropped, from, fmt.Sprintf("%s -t %s -D %s", legacyProgram(f), table, strings.TrimPrefix(r.text, "-A "))))
				}}
				if err := search.chain(name, &conditions{}, 0); err != nil {
					return findings, err
				}
			}
		}
	}
	return findings, nil
}

// maxNamed is how many destinations a finding about a rule names.
const maxNamed = 4

// dropFinding returns the finding about a rule that may drop packets. remove is the command
// that removes the rule.
func dropFinding(chain string, r *foreignRule, dropped []packet, from, remove string) Finding {
	var names []string
	for _, p := range dropped {
		if !slices.Contains(names, p.what) {
			names = append(names, p.what)
		}
	}
	to := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
		to += fmt.Sprintf(" and %d more", more)
	}
	repair := remove + " (if the rule is not meant for them)"
	if t := dropped[0].trace; t != "" {
		if from != ofHost {
			t += " --from ADDRESS"
		}
		repair = remove + fmt.Sprintf(" (if the rule is not meant for them: allocnet trace %s shows where packets end)", t)
	}
	return find("port-drop", chain+" "+r.text, fmt.Sprintf("a rule of another program may drop %s to %s: %s, %s", from, to, chain, r.text), repair)
}
