package netpolicy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/policy"
)

// Rule is a rule of a policy as a line of text.
type Rule struct {
	Direction string         `json:"direction"`
	Verdict   policy.Verdict `json:"verdict"`
	Peer      string         `json:"peer"`    // "any" for every peer
	Service   string         `json:"service"` // "any" for everything
	Rule      string         `json:"rule"`    // its name, as a decision has it
}

const anything = "any"

// Rules returns what a policy means: for each direction the rules in the order
// in which they decide, and the default. The addresses of metadata are two
// rules, one of each family; next to each other they are one line.
func Rules(p *policy.Policy) []Rule {
	list := []Rule{}
	for _, t := range []policy.Traffic{policy.Ingress, policy.Egress} {
		steps, fallback := p.Steps(t)
		for i := range steps {
			s := &steps[i]
			for _, service := range s.Services {
				list = append(list, Rule{t.String(), s.Verdict, peerText(s), service.String(), s.Rule})
			}
		}
		list = append(list, Rule{t.String(), fallback, anything, anything, "default"})
	}
	return slices.Compact(list)
}

func peerText(s *policy.Step) string {
	switch {
	case s.Selector != nil:
		return policy.Peer{Selector: s.Selector}.String()
	case s.Allocation != "":
		return policy.Peer{Allocation: s.Allocation}.String()
	case s.OtherNetwork && s.Host:
		return "host, but not the gateway"
	case s.OtherNetwork:
		return "allocations of other networks"
	case s.Unpublished:
		return "outside of its network, except to host ports"
	case s.Host:
		return "host"
	case s.World:
		return "world"
	case len(s.Prefixes) == 0:
		return anything
	case slices.Equal(s.Prefixes, metadata(s.Prefixes[0].Addr().Is4())):
		return "metadata"
	}
	var texts []string
	for _, p := range s.Prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

// metadata returns the addresses of one family for which the peer "metadata" stands.
func metadata(is4 bool) []netip.Prefix {
	return slices.DeleteFunc(policy.Metadata(), func(p netip.Prefix) bool { return p.Addr().Is4() != is4 })
}
