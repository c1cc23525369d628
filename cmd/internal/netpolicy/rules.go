package netpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
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

// Rules returns what a policy means: for each direction the rules in the order in which
// they decide, and the default.
func Rules(p *policy.Policy) []Rule {
	list := []Rule{}
	for _, t := range []policy.Traffic{policy.Ingress, policy.Egress} {
		steps, fallback := p.Steps(t)
		for i := range steps {
			s := &steps[i]
			list = append(list, Rule{t.String(), s.Verdict, peerText(s), serviceText(s), s.Rule})
		}
		list = append(list, Rule{t.String(), fallback, anything, anything, "default"})
	}
	return list
}

func peerText(s *policy.Step) string {
	switch {
	case s.Selector != nil:
		return policy.Peer{Selector: s.Selector}.String()
	case s.Allocation != "":
		return policy.Peer{Allocation: s.Allocation}.String()
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

func serviceText(s *policy.Step) string {
	switch {
	case s.Protocol == 0:
		return anything
	case !s.Ports:
		return ProtocolText(s.Protocol)
	case s.First == s.Last:
		return fmt.Sprintf("%s/%d", ProtocolText(s.Protocol), s.First)
	}
	return fmt.Sprintf("%s/%d-%d", ProtocolText(s.Protocol), s.First, s.Last)
}

// The protocols whose services policies distinguish.
var protocols = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}

// ProtocolText returns the name of a protocol, or its number if it has none here.
func ProtocolText(number uint8) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}

// FlowText returns a flow in the notation of a service.
func FlowText(f policy.Flow) string {
	name := ProtocolText(f.Protocol)
	if protocols[name] == 0 {
		return name
	}
	return fmt.Sprintf("%s/%d", name, f.Port)
}

// ParseFlow reads a service with one port or one type, as "tcp/443", "443/tcp" and "icmp/8".
// An echo request is the default of icmp and icmpv6.
func ParseFlow(text string) (policy.Flow, error) {
	first, second, found := strings.Cut(text, "/")
	if _, err := strconv.ParseUint(first, 10, 16); err == nil && found {
		text = second + "/" + first
	}
	s, err := policy.ParseService(text)
	if err != nil {
		return policy.Flow{}, err
	}
	f := policy.Flow{Protocol: protocols[s.Protocol]}
	const echo, echoV6 = 8, 128
	switch {
	case s.Type != nil:
		f.Port = uint16(*s.Type)
	case s.Protocol == "icmp":
		f.Port = echo
	case s.Protocol == "icmpv6":
		f.Port = echoV6
	default:
		port, err := strconv.ParseUint(s.Ports, 10, 16)
		if err != nil {
			return f, fmt.Errorf("service %q: give one port, such as %s/443", text, s.Protocol)
		}
		f.Port = uint16(port)
	}
	return f, nil
}
