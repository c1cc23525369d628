package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/strictjson"
)

// Peer is the other end of traffic: exactly one of its fields is set.
//
// In JSON it is {"cidr":"10.0.0.0/8"}, {"labels":{"app":"db"}} and, together with labels or
// alone, {"expressions":[{"key":"tier","operator":"Exists"}]}, {"allocation":"web-1"} or
// {"name":"host"}.
type Peer struct {
	// CIDR are addresses, of allocations as well as of others. Bits after the prefix are
	// zero, and an IPv4-mapped IPv6 address is not possible.
	CIDR netip.Prefix
	// Selector selects allocations of this host by their labels.
	Selector *Selector
	// Allocation is the ID of an allocation of this host, which need not exist yet.
	Allocation string
	// Name is "host", the addresses of the host; "world", every address that is neither
	// the host's nor an allocation's, and neither link-local nor in Metadata; or
	// "metadata", the addresses in Metadata.
	Name string
}

// The values of Peer.Name.
const (
	nameHost     = "host"
	nameWorld    = "world"
	nameMetadata = "metadata"
)

// Selector selects allocations by their labels, as a label selector of Kubernetes does:
// all Labels and all Expressions must match. The zero value selects every allocation.
type Selector struct {
	Labels      map[string]string
	Expressions []Requirement
}

// Requirement is a condition on one label. Operator is In, NotIn, Exists or DoesNotExist.
// In and NotIn have Values, the others none. NotIn also matches if there is no such label.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// The operators of a Requirement.
const (
	opIn           = "In"
	opNotIn        = "NotIn"
	opExists       = "Exists"
	opDoesNotExist = "DoesNotExist"
)

// Matches reports whether the selector selects an allocation with these labels.
func (s Selector) Matches(labels map[string]string) bool {
	for key, want := range s.Labels {
		if value, ok := labels[key]; !ok || value != want {
			return false
		}
	}
	for _, r := range s.Expressions {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r Requirement) matches(labels map[string]string) bool {
	value, ok := labels[r.Key]
	switch r.Operator {
	case opIn:
		return ok && slices.Contains(r.Values, value)
	case opNotIn:
		return !ok || !slices.Contains(r.Values, value)
	case opExists:
		return ok
	case opDoesNotExist:
		return !ok
	}
	return false
}

// peerJSON is the form of a Peer in JSON: the selector has no level of its own.
type peerJSON struct {
	CIDR        *string           `json:"cidr,omitempty"`
	Labels      map[string]string `json:"labels,omitzero"`
	Expressions []Requirement     `json:"expressions,omitempty"`
	Allocation  string            `json:"allocation,omitempty"`
	Name        string            `json:"name,omitempty"`
}

// MarshalJSON encodes the peer in the form that the type describes.
func (p Peer) MarshalJSON() ([]byte, error) {
	out := peerJSON{Allocation: p.Allocation, Name: p.Name}
	if p.CIDR != (netip.Prefix{}) {
		text := p.CIDR.String()
		out.CIDR = &text
	}
	if p.Selector != nil {
		out.Labels, out.Expressions = p.Selector.Labels, p.Selector.Expressions
		if out.Labels == nil && len(out.Expressions) == 0 {
			out.Labels = map[string]string{}
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON decodes a peer strictly, but does not validate it.
func (p *Peer) UnmarshalJSON(data []byte) error {
	var in peerJSON
	if err := strictjson.UnmarshalWithoutNull(data, &in); err != nil {
		return err
	}
	out := Peer{Allocation: in.Allocation, Name: in.Name}
	if in.CIDR != nil {
		var err error
		if out.CIDR, err = parseCIDR(*in.CIDR); err != nil {
			return strictjson.At("cidr", err)
		}
	}
	if in.Labels != nil || in.Expressions != nil {
		out.Selector = &Selector{Labels: in.Labels, Expressions: in.Expressions}
	}
	*p = out
	return nil
}

func parseCIDR(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return prefix, fmt.Errorf("%.64q is not a network in CIDR notation, such as 10.0.0.0/8 or fd00::/8", text)
	}
	return prefix, nil
}
