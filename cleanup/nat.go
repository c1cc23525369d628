package cleanup

import (
	"net/netip"

	"github.com/allocnet/allocnet/internal/iptables"
)

// owner says whose a rule is, as far as its comment tells.
type owner int

const (
	nobody owner = iota
	ours
	another
)

// natTable is one listing of the nat table and what of it is the allocation's.
type natTable struct {
	*search
	family   family
	listing  iptables.Listing
	comments map[string]string // comment of the allocation's -> network
	own      map[string]string // chain of the allocation's -> network
}

// inNat finds the chains of the allocation and the jumps to them.
func (f *iptablesFinder) inNat(ipt tables, fam family) error {
	listing, err := list(ipt, "nat")
	nat := natTable{search: f.search, family: fam, listing: listing}
	nat.readNames()
	nat.readChains()
	nat.readAddresses()
	f.rules = append(f.rules, nat.rules()...)
	f.chains = append(f.chains, nat.chains()...)
	return err
}

// readNames computes the names that the allocation's comments and chains have.
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

// readChains adds the chains that only comments tell, and drops those that another allocation uses too: the
// plugins hash network and ID without a mark between them, so "a"+"bc" and "ab"+"c" share a chain.
func (n *natTable) readChains() {
	for _, rule := range n.listing.Rules {
		network, owner := n.owner(rule)
		if target := rule.Value("-j"); owner == ours && ownChain.MatchString(target) {
			n.own[target] = network
		}
	}
	for _, rule := range n.listing.Rules {
		if _, owner := n.owner(rule); owner == another {
			delete(n.own, rule.Chain)
			delete(n.own, rule.Value("-j"))
		}
	}
}

// owner tells whose a rule is by its comment.
func (n *natTable) owner(rule iptables.Rule) (network string, owner owner) {
	comment := rule.Value("--comment")
	if network, known := n.comments[comment]; known {
		return network, ours
	}
	if len(n.attachments) == 0 && commentHasID(comment, n.target.ID) {
		return "", ours
	}
	if isComment(comment) {
		return "", another
	}
	return "", nobody
}

// readAddresses learns who holds which address: from the jumps to masquerade chains, and from the allocation's own
// host ports.
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
		if network, owner := n.owner(rule); owner == ours {
			n.addresses.addOwn(source, network)
		} else if _, own := n.own[target]; !own {
			n.addresses.addForeign(source)
		}
	}
}

// destination is the address that a rule redirects to, if it does.
func destination(rule iptables.Rule) netip.Addr {
	if to, err := netip.ParseAddrPort(rule.Value("--to-destination")); err == nil {
		return to.Addr()
	}
	return netip.Addr{}
}

// rules are the allocation's rules outside its own chains.
func (n *natTable) rules() []iptRule {
	var list []iptRule
	for _, rule := range n.listing.Rules {
		if _, inside := n.own[rule.Chain]; inside {
			continue
		}
		network, owner := n.owner(rule)
		if owner == nobody {
			if target, leads := n.own[rule.Value("-j")]; leads {
				network, owner = target, ours
			}
		}
		if owner == ours {
			list = append(list, iptRule{Rule: rule, family: n.family, table: "nat", network: network})
		}
	}
	return list
}

// chains are the allocation's own chains that exist.
func (n *natTable) chains() []iptChain {
	var list []iptChain
	for _, chain := range n.listing.Chains {
		if network, own := n.own[chain]; own {
			list = append(list, iptChain{family: n.family, name: chain, network: network})
		}
	}
	return list
}
