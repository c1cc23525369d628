package trace

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/policy"
)

// policyChain is the name of a chain of a network policy, with the direction and, if both the
// network and the allocation deny something, whose policy it is: 0 or 1.
var policyChain = regexp.MustCompile("^" + names.PolicyPrefix + `[0-9a-f]+_(ingress|egress)(?:_([01]))?$`)

// digest ends the comments of allocnet's rules.
var digest = regexp.MustCompile(` \[[0-9a-f]{8}\]$`)

// denied says which rule of a network policy drops the probe, and how to allow it.
func (f *tracer) denied(ctx context.Context, c *Chain) (found, next string) {
	var r *Rule
	for i := range c.Rules {
		if policyChain.MatchString(c.Rules[i].Chain) {
			r = &c.Rules[i]
		}
	}
	if r == nil {
		return c.String(), "the network policy of the allocation is not complete: `allocnet repair` restores it"
	}
	parts := policyChain.FindStringSubmatch(r.Chain)
	traffic := policy.Ingress
	if parts[1] == policy.Egress.String() {
		traffic = policy.Egress
	}
	rule, at := f.ruleName(ctx, c, r), fmt.Sprintf("(%s %s %s, rule %d)", c.Family, c.Table, r.Chain, r.Handle)
	if traffic == policy.Egress {
		return fmt.Sprintf("denied by %s of an egress policy of the sender %s %s", rule, f.path.From.Addr(), at),
			"`allocnet policy denied` lists the flow with its allocation and its policy"
	}
	whose := f.policyOf(traffic, parts[2])
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
	return digest.ReplaceAllString(netfilter.Comment(rules[i].UserData), "")
}

// policyOf returns whose policy a chain belongs to. Only policies that deny something have a
// chain, and it has no number if there is one of them.
func (f *tracer) policyOf(t policy.Traffic, number string) string {
	network, general := f.network()
	if number == "0" || number == "" && netpolicy.Denies(general, t) {
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
