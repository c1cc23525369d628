package trace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/policy"
)

// denied says which rule of a network policy drops the probe, and how to allow it.
func (f *tracer) denied(ctx context.Context, c *Chain) (found, next string) {
	var r *Rule
	var in names.PolicyChain
	for i := range c.Rules {
		if chain, ok := names.ParsePolicyChain(c.Rules[i].Chain); ok {
			r, in = &c.Rules[i], chain
		}
	}
	if r == nil {
		return c.String(), "the network policy of the allocation is not complete: `allocnet repair` restores it"
	}
	rule, at := f.ruleName(ctx, c, r), fmt.Sprintf("(%s %s %s, rule %d)", c.Family, c.Table, r.Chain, r.Handle)
	if in.Direction == names.Egress {
		return fmt.Sprintf("denied by %s of an egress policy of the sender %s %s", rule, f.path.From.Addr(), at),
			"`allocnet policy denied` lists the flow with its allocation and its policy"
	}
	whose := f.policyOf(in.Stage)
	found = fmt.Sprintf("denied by %s of the policy of %s %s", rule, whose, at)
	return found, f.allowing(rule, whose)
}

// allowing says how to allow the probe.
func (f *tracer) allowing(rule, whose string) string {
	service := policy.Service{Protocol: f.Mapping.Protocol, Ports: fmt.Sprint(f.path.To.Port())}
	peer, json := "host", `{"name": "host"}`
	if f.From.IsValid() {
		peer = f.From.String()
		json = fmt.Sprintf(`{"cidr": %q}`, netip.PrefixFrom(f.From, f.From.BitLen()))
	}
	next := fmt.Sprintf(`allow it with {"peers": [%s], "services": [{"protocol": %q, "ports": %q}]} in ingress.rules`, json, service.Protocol, service.Ports)
	if rule != "default" {
		next = "change that rule, or, if its peer is less specific, " + next
	}
	where := fmt.Sprintf("`allocnet set %s --policy FILE`", f.Record.ID)
	if strings.HasPrefix(whose, "network ") {
		where = "in the configuration of its plugin policy; that of the embedded network is the setting policy of allocnetd. " +
			"Allocations that exist keep theirs until they are set up again"
	}
	return fmt.Sprintf("%s: %s. `allocnet policy explain %s --from %s %s` shows all rules that decide", next, where, f.Record.ID, peer, service)
}

// ruleName returns the name of a rule of a policy: the comment of the rule in the kernel.
func (f *tracer) ruleName(ctx context.Context, c *Chain, r *Rule) string {
	family := map[string]nftables.TableFamily{"ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6}[c.Family]
	rules, err := netfilter.Rules(ctx, &nftables.Chain{Name: r.Chain, Table: &nftables.Table{Name: names.PolicyTable, Family: family}})
	i := slices.IndexFunc(rules, func(one *nftables.Rule) bool { return one.Handle == r.Handle })
	if err != nil || i < 0 { // it was removed meanwhile
		return fmt.Sprintf("rule %d", r.Handle)
	}
	return ruleset.Purpose(netfilter.Comment(rules[i].UserData))
}

// policyOf returns whose policy a chain for ingress belongs to. Only policies that deny something
// have a stage, that of the network comes first, and a single one has no number.
func (f *tracer) policyOf(stage int) string {
	network, general := f.network()
	if stage == 0 || stage == names.NoStage && netpolicy.Denies(general, policy.Ingress) {
		return "network " + network
	}
	return "allocation " + f.Record.ID
}

// network returns the network of the address, and its policy.
func (f *tracer) network() (name string, general *policy.Policy) {
	for _, i := range f.Record.Status.Interfaces {
		for _, a := range i.Addresses {
			if p, err := netip.ParsePrefix(a.Address); err == nil && p.Addr().Unmap() == f.Address.Unmap() {
				name = i.Network
			}
		}
	}
	for _, n := range f.Record.Networks {
		if n.Network == name {
			general, _, _ = netpolicy.PolicyOf(n.Config) // it was valid at the Setup
		}
	}
	return name, general
}
