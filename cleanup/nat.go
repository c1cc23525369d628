package cleanup

import (
	"context"
	"net/netip"

	"github.com/allocnet/allocnet/internal/iptables"
)

// ruleOwner is the owner of a rule according to its comment.
type ruleOwner int

const (
	unknownOwner ruleOwner = iota
	ownAllocation
	otherAllocation
)

// natTable is a listing of the nat table, and the names of the allocation's rules and
// chains.
type natTable struct {
	*search
	family   family
	listing  iptables.Listing
	comments map[string]string // comment of the allocation's rules -> network
	own      map[string]string // chain of the allocation -> network
}

// inNat finds the chains of the allocation and the rules that jump to them.
func (f *iptablesFinder) inNat(ctx context.Context, ipt tables, fam family) error {
	listing, err := list(ctx, ipt, "nat")
	nat := natTable{search: f.search, family: fam, listing: listing}
	nat.readNames()
	nat.readChains()
	nat.readAddresses()
	f.rules = append(f.rules, nat.rules()...)
	f.chains = append(f.chains, nat.chains()...)
	return err
}

// readNames computes the comments and chain names of the allocation.
func (n *natTable) readNames() {
	n.comments, n.own = make(map[string]string), make(map[string]string)
	for _, a := range n.attachments {
		for _, comment := range comments(a.Network, n.target.ID) {
			n.comments[comment] = a.Network
		}
		for _, chain := range chainNames(a.Network, n.target.ID) {
			n.own[chain] = a.Network
		}
	}
}

// readChains adds chains that only comments identify, and removes chains that another
// allocation uses too: plugins hash network and ID without a separator, so "a"+"bc" and
// "ab"+"c" share a chain.
func (n *natTable) readChains() {
	for _, rule := range n.listing.Rules {
		network, owner := n.owner(rule)
		if target := rule.Value("-j"); owner == ownAllocation && ownChain.MatchString(target) {
			n.own[target] = network
		}
	}
	for _, rule := range n.listing.Rules {
		if _, owner := n.owner(rule); owner == otherAllocation {
			delete(n.own, rule.Chain)
			delete(n.own, rule.Value("-j"))
		}
	}
}

// owner returns the owner of a rule and its network, according to its comment.
func (n *natTable) owner(rule iptables.Rule) (network string, owner ruleOwner) {
	comment := rule.Value("--comment")
	if network, known := n.comments[comment]; known {
		return network, ownAllocation
	}
	if n.anyNetwork() && commentHasID(comment, n.target.ID) {
		return "", ownAllocation
	}
	if isComment(comment) {
		return "", otherAllocation
	}
	return "", unknownOwner
}

// readAddresses records the holders of addresses: from the jumps to masquerade chains,
// and from the host ports of the allocation.
func (n *natTable) readAddresses() {
	for _, rule := range n.listing.Rules {
		if network, own := n.own[rule.Chain]; own {
			n.addresses.addOwn(destination(rule), network)
		}
		target := rule.Value("-j")
		if rule.Chain != "POSTROUTING" || !ownChain.MatchString(target) {
			continue
		}
		source := singleAddress(rule.Value("-s"))
		if network, owner := n.owner(rule); owner == ownAllocation {
			n.addresses.addOwn(source, network)
		} else if _, own := n.own[target]; !own {
			n.addresses.addForeign(source)
		}
	}
}

// destination returns the destination address of a DNAT rule.
func destination(rule iptables.Rule) netip.Addr {
	if to, err := netip.ParseAddrPort(rule.Value("--to-destination")); err == nil {
		return to.Addr()
	}
	return netip.Addr{}
}

// rules returns the rules of the allocation outside its own chains.
func (n *natTable) rules() []iptRule {
	var list []iptRule
	for _, rule := range n.listing.Rules {
		if _, inside := n.own[rule.Chain]; inside {
			continue
		}
		network, owner := n.owner(rule)
		if owner == unknownOwner {
			if target, leads := n.own[rule.Value("-j")]; leads {
				network, owner = target, ownAllocation
			}
		}
		if owner == ownAllocation {
			list = append(list, iptRule{Rule: rule, family: n.family, table: "nat", network: network})
		}
	}
	return list
}

// chains returns the existing chains of the allocation.
func (n *natTable) chains() []iptChain {
	var list []iptChain
	for _, chain := range n.listing.Chains {
		if network, own := n.own[chain]; own {
			list = append(list, iptChain{family: n.family, name: chain, network: network})
		}
	}
	return list
}
