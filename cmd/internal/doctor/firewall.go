package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/portmap"
)

// checkFirewall looks for rules of other programs that take packets away from allocations.
func checkFirewall(ctx context.Context, h *Host) ([]Finding, error) {
	chains, err := baseChains(ctx)
	if err != nil {
		return nil, err
	}
	var findings []Finding
	foreign := h.foreignDrops(chains)
	forward, err := h.forwardPolicy(ctx, chains)
	nat, natErr := h.foreignNAT(ctx)
	mixed, mixedErr := mixedIPTables(ctx, chains)
	zones, zonesErr := h.firewalld(ctx)
	drops, dropsErr := h.portDrops(ctx, chains)
	guards, guardsErr := lostGuards(ctx)
	return slices.Concat(findings, foreign, forward, nat, mixed, zones, drops, guards), errors.Join(err, natErr, mixedErr, zonesErr, dropsErr, guardsErr)
}

// baseChain is a chain that the kernel calls for packets, with its rules.
type baseChain struct {
	*nftables.Chain
	rules []*nftables.Rule
}

func (c baseChain) String() string {
	return familyName(c.Table.Family) + " " + c.Table.Name + " " + c.Name
}

// ofIPTables reports whether the chain is one that the program iptables made.
func (c baseChain) ofIPTables() bool {
	return (c.Table.Family == nftables.TableFamilyIPv4 || c.Table.Family == nftables.TableFamilyIPv6) &&
		c.Name == strings.ToUpper(c.Name) && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, c.Table.Name)
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	}
	return "family-" + strconv.Itoa(int(f))
}

// baseChains returns the base chains of the families that see forwarded packets of IP.
func baseChains(ctx context.Context) (list []baseChain, err error) {
	err = netfilter.Look(ctx, func(c *nftables.Conn) error {
		list = nil
		chains, err := c.ListChains()
		if err != nil {
			return err
		}
		for _, chain := range chains {
			if chain.Hooknum == nil || strings.HasPrefix(familyName(chain.Table.Family), "family-") {
				continue
			}
			rules, err := netfilter.Rules(ctx, chain)
			if err != nil {
				return err
			}
			list = append(list, baseChain{chain, rules})
		}
		return nil
	})
	if err != nil {
		if netfilter.IsUnsupported(err) { // checkKernel reports it
			return nil, nil
		}
		return nil, fmt.Errorf("list nftables: %w", err)
	}
	return list, nil
}

func isOurs(table string) bool { return names.IsOwnTable(table) }

// foreignDrops reports chains of other programs for forwarded packets that drop what no
// rule of theirs accepts, unless they accept packets of allocations.
func (h *Host) foreignDrops(chains []baseChain) (findings []Finding) {
	for _, c := range chains {
		if *c.Hooknum != *nftables.ChainHookForward || isOurs(c.Table.Name) || c.ofIPTables() || c.Table.Name == "firewalld" || !c.drops() {
			continue
		}
		var refused []netip.Prefix
		for _, s := range h.usedSubnets() {
			if c.sees(s) && !c.acceptsFrom(s) {
				refused = append(refused, s)
			}
		}
		if len(refused) > 0 && !c.acceptsApproved() {
			findings = append(findings, find("foreign-drop", c.String(),
				fmt.Sprintf("chain %s drops forwarded packets that none of its rules accepts, also those of %s", c, joined(refused)),
				c.acceptRules(refused)+" (and add the rules to the file that makes the table)"))
		}
	}
	return findings
}

// usedSubnets returns the subnets of the networks that have a file or an allocation.
func (h *Host) usedSubnets() (list []netip.Prefix) {
	all := h.subnets()
	for _, s := range all {
		if s.Network.File != "" || h.used(s.Network.Name) {
			list = append(list, s.Prefix)
		}
	}
	return list
}

func joined(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

// sees reports whether packets of a subnet pass the chain.
func (c baseChain) sees(s netip.Prefix) bool {
	switch c.Table.Family {
	case nftables.TableFamilyIPv4:
		return s.Addr().Is4()
	case nftables.TableFamilyIPv6:
		return s.Addr().Is6()
	}
	return true
}

// atMark reports whether packets have the mark of allocnet's tables in the chain: they have
// it only between the chains of these tables, right before and after the priority filter.
func (c baseChain) atMark() bool {
	return c.Priority != nil && *c.Priority == *nftables.ChainPriorityFilter
}

// acceptRules returns the command that makes the chain accept what allocnet's tables approve.
func (c baseChain) acceptRules(subnets []netip.Prefix) string {
	if c.atMark() {
		return fmt.Sprintf("nft insert rule %s meta mark and %#x == %#x accept", c, ruleset.ForwardMark, ruleset.ForwardMark)
	}
	var rules []string
	for _, s := range subnets {
		ip := "ip"
		if s.Addr().Is6() {
			ip = "ip6"
		}
		for _, match := range []string{"%s saddr %s", "%s daddr %s ct state established,related", "%s daddr %s ct status dnat"} {
			rules = append(rules, fmt.Sprintf("insert rule %s "+match+" accept", c, ip, s))
		}
	}
	return "nft '" + strings.Join(rules, "; ") + "'"
}

// acceptsFrom reports whether a rule without further conditions accepts packets from a
// subnet.
func (c baseChain) acceptsFrom(s netip.Prefix) bool {
	return slices.ContainsFunc(c.rules, func(r *nftables.Rule) bool {
		var source, match, accept bool
		bits := -1
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Payload:
				source = e.Base == expr.PayloadBaseNetworkHeader && e.Offset == sourceOffset(s)
				if !source {
					return false
				}
			case *expr.Bitwise:
				bits, _ = net.IPMask(e.Mask).Size()
			case *expr.Cmp:
				if source {
					match = e.Op == expr.CmpOpEq && contains(e.Data, bits, s)
				}
			case *expr.Meta:
				if e.Key != expr.MetaKeyNFPROTO {
					return false
				}
			case *expr.Counter:
			case *expr.Verdict:
				accept = e.Kind == expr.VerdictAccept
			default:
				return false
			}
		}
		return match && accept
	})
}

// sourceOffset returns the place of the source address in the header of IP.
func sourceOffset(s netip.Prefix) uint32 {
	if s.Addr().Is4() {
		return 12
	}
	return 8
}

// contains reports whether the leading bytes of a prefix contain a subnet. Without a mask
// (bits -1), all of them are the prefix.
func contains(leading []byte, bits int, s netip.Prefix) bool {
	if bits < 0 {
		bits = 8 * len(leading)
	}
	whole := make([]byte, s.Addr().BitLen()/8)
	copy(whole, leading)
	addr, ok := netip.AddrFromSlice(whole)
	return ok && bits <= s.Bits() && netip.PrefixFrom(addr, bits).Contains(s.Addr())
}

// drops reports whether a packet that no rule matches is dropped: by the policy, or by a
// last rule without a condition.
func (c baseChain) drops() bool {
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		return true
	}
	if len(c.rules) == 0 {
		return false
	}
	for _, e := range c.rules[len(c.rules)-1].Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log, *expr.Limit:
		case *expr.Reject:
			return true
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		default:
			return false
		}
	}
	return false
}

// acceptsApproved reports whether a rule accepts packets with the mark of allocnet's tables.
func (c baseChain) acceptsApproved() bool {
	return c.atMark() && slices.ContainsFunc(c.rules, func(r *nftables.Rule) bool {
		var mark, bit, accept bool
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Meta:
				mark = mark || e.Key == expr.MetaKeyMARK
			case *expr.Bitwise:
				bit = bit || len(e.Mask) == 4 && binary.NativeEndian.Uint32(e.Mask)&ruleset.ForwardMark != 0
			case *expr.Verdict:
				accept = e.Kind == expr.VerdictAccept
			}
		}
		return mark && bit && accept
	})
}

// forwardPolicy reports a FORWARD chain of iptables that drops, if the forward-accept rule
// of native networks is missing, and networks without the plugin that makes it.
func (h *Host) forwardPolicy(ctx context.Context, chains []baseChain) (findings []Finding, err error) {
	var families []iptables.Family
	var without []iptables.Family // whose legacy variant drops, and has no rule for allocations
	var errs []error
	for f, family := range map[iptables.Family]nftables.TableFamily{iptables.IPv4: nftables.TableFamilyIPv4, iptables.IPv6: nftables.TableFamilyIPv6} {
		if f == iptables.IPv6 && !slices.ContainsFunc(h.ready(), func(r *configurator.Record) bool { return r.Status.AddressIPv6 != "" }) {
			continue
		}
		drops := slices.ContainsFunc(chains, func(c baseChain) bool {
			return c.ofIPTables() && c.Table.Family == family && c.Name == "FORWARD" && c.Table.Name == "filter" && c.drops()
		})
		legacy, err := legacyForward(ctx, f)
		errs = append(errs, err)
		if drops || legacy != "" {
			families = append(families, f)
		}
		if legacy == forwardDrops {
			without = append(without, f)
		}
	}
	slices.Sort(families)
	if len(families) == 0 {
		return nil, errors.Join(errs...)
	}
	if slices.ContainsFunc(h.ready(), func(r *configurator.Record) bool { return r.Engine == configurator.EngineNative }) {
		rule := iptables.NewAcceptRule()
		err := rule.Check(ctx, families)
		errs = append(errs, rule.Close())
		if errors.Is(err, iptables.ErrMissing) {
			findings = append(findings, find("forward-drop", "FORWARD", "the policy of the chain FORWARD of iptables is to drop"+byDocker(chains)+", and the rule for allocations is missing: "+err.Error(),
				"allocnet repair").withFix(func(ctx context.Context) error {
				rule := iptables.NewAcceptRule()
				return errors.Join(rule.Ensure(ctx, families), rule.Close())
			}))
		} else {
			errs = append(errs, err)
			for _, f := range without { // the rule is one of nf_tables
				findings = append(findings, find("forward-drop", "FORWARD of "+legacyProgram(f), "the policy of the chain FORWARD of the legacy iptables is to drop, and the rule for allocations is one of nf_tables, which does not count there",
					legacyProgram(f)+" -P FORWARD ACCEPT"))
			}
		}
	}
	for _, n := range h.Networks {
		types := n.PluginTypes()
		reached := slices.Contains(types, "bridge") || slices.Contains(types, "ptp")
		if reached && !slices.Contains(types, "firewall") {
			findings = append(findings, find("no-firewall-plugin", n.Name, fmt.Sprintf("the policy of the chain FORWARD of iptables is to drop%s, and network %q has no plugin firewall",
				byDocker(chains), n.Name), fmt.Sprintf(`add {"type": "firewall"} to the plugins in %s, behind the first one, and set up its allocations again`, n.File)))
		}
	}
	return findings, errors.Join(errs...)
}

// byDocker names Docker as the cause of a policy if its chains exist.
func byDocker(chains []baseChain) string {
	for _, c := range chains {
		for _, r := range c.rules {
			for _, e := range r.Exprs {
				if v, ok := e.(*expr.Verdict); ok && strings.HasPrefix(v.Chain, "DOCKER") {
					return " (Docker sets it)"
				}
			}
		}
	}
	return ""
}

// foreignNAT reports rules of iptables that redirect a published port before allocnet's
// table sees the connection: rules of both are at the same priority, and an earlier chain
// counts; a connection is redirected once.
func (h *Host) foreignNAT(ctx context.Context) (findings []Finding, err error) {
	var published []portmap.Mapping
	owners := map[int]string{}
	for _, r := range h.ready() {
		for _, m := range r.Ports {
			published = append(published, m)
			owners[m.HostPort] = r.ID
		}
	}
	if len(published) == 0 {
		return nil, nil
	}
	rules, err := natRules(ctx)
	for _, rule := range rules {
		for _, m := range published {
			if redirects(rule.text, m) {
				findings = append(findings, find("foreign-nat", fmt.Sprintf("port %d/%s", m.HostPort, m.Protocol),
					fmt.Sprintf("host port %d/%s of allocation %q is redirected by a rule of iptables: %s", m.HostPort, m.Protocol, owners[m.HostPort], rule.text),
					fmt.Sprintf("%s -t nat -D %s (or publish another host port)", rule.program, strings.TrimPrefix(rule.text, "-A "))))
			}
		}
	}
	return findings, err
}

type natRule struct{ program, text string }

// natRules returns the DNAT rules of iptables that are not those of the reference portmap
// plugin, of both variants.
func natRules(ctx context.Context) (list []natRule, err error) {
	var errs []error
	add := func(program string, lines []string) {
		for _, line := range lines {
			if strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A CNI-") && (strings.Contains(line, "-j DNAT") || strings.Contains(line, "-j REDIRECT")) {
				list = append(list, natRule{program, line})
			}
		}
	}
	for _, f := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		legacy, err := legacyRules(ctx, f, "nat")
		errs = append(errs, err)
		add(legacyProgram(f), legacy)
		out, err := exec.CommandContext(ctx, f.Program(), "-w", "5", "-t", "nat", "-S").Output()
		if err != nil && !errors.Is(err, exec.ErrNotFound) && f == iptables.IPv4 {
			errs = append(errs, fmt.Errorf("list %s: %w", f.Program(), err))
		}
		add(f.Program(), strings.Split(strings.TrimSpace(string(out)), "\n"))
	}
	return list, errors.Join(errs...)
}

// redirects reports whether a rule of iptables matches a published port.
func redirects(rule string, m portmap.Mapping) bool {
	words := strings.Fields(rule)
	value := func(option string) string {
		if i := slices.Index(words, option); i >= 0 && i+1 < len(words) {
			return words[i+1]
		}
		return ""
	}
	if p := value("-p"); p != "" && p != m.Protocol {
		return false
	}
	if d := value("-d"); m.HostIP != "" && d != "" && !strings.HasPrefix(d, m.HostIP+"/") && d != m.HostIP {
		return false
	}
	for _, ports := range []string{value("--dport"), value("--dports")} {
		for _, one := range strings.Split(ports, ",") {
			from, to, isRange := strings.Cut(one, ":")
			if !isRange {
				to = from
			}
			low, lowErr := strconv.Atoi(from)
			high, highErr := strconv.Atoi(to)
			if lowErr == nil && highErr == nil && low <= m.HostPort && m.HostPort <= high {
				return true
			}
		}
	}
	return false
}

// firewalld reports a firewalld that runs and cannot be reached.
func (h *Host) firewalld(ctx context.Context) ([]Finding, error) {
	_, err := firewalld.Shared.Runs(ctx)
	if errors.Is(err, firewalld.ErrUnreachable) || errors.Is(err, firewalld.ErrSilent) {
		return []Finding{find("firewalld", "firewalld", err.Error(), "systemctl restart dbus firewalld")}, nil
	}
	return nil, err
}
