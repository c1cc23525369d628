package ruleset

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// Services are the services of which a packet has one. Without any, every packet matches.
//
// In JSON, a single one is an object, as all were once. Versions of allocnet that know no others fail to
// read several, instead of taking the rule for one about every packet.
type Services []Service

// MarshalJSON encodes the services as the type describes.
func (s Services) MarshalJSON() ([]byte, error) {
	switch len(s) {
	case 0:
		return json.Marshal(Service{})
	case 1:
		return json.Marshal(s[0])
	}
	return json.Marshal([]Service(s))
}

// UnmarshalJSON decodes what MarshalJSON returns.
func (s *Services) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte("[")) {
		return json.Unmarshal(data, (*[]Service)(s))
	}
	var one Service
	err := json.Unmarshal(data, &one)
	if *s = nil; one != (Service{}) {
		*s = Services{one}
	}
	return err
}

// hasPorts reports whether the service is some ports of a protocol.
func (s *Service) hasPorts() bool { return s.Type == nil && s.Last != 0 }

// services returns the conditions of which a packet of one of the services meets one; none if no packet of
// the family is of one. original stands for the services before the translation of a connection: nft could not
// read its own listing of a set with those ports.
func (n *policyObjects) services(services Services, original bool) (list [][]expr.Any) {
	if len(services) == 0 {
		return [][]expr.Any{nil}
	}
	var ports []Service
	for i := range services {
		if s := &services[i]; s.hasPorts() && !original {
			ports = append(ports, *s)
		} else if exprs, ok := n.service(s, original); ok {
			list = append(list, exprs)
		}
	}
	switch ports = disjoint(ports); len(ports) {
	case 0:
		return list
	case 1:
		exprs, _ := n.service(&ports[0], false)
		return append(list, exprs)
	}
	return append(list, []expr.Any{protocol(0), port(4), inSet(n.servicesSet(ports))})
}

// disjoint returns the same ports in order, and each once: the kernel refuses elements that overlap.
func disjoint(ports []Service) (list []Service) {
	ports = slices.SortedFunc(slices.Values(ports), func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
	for _, p := range ports {
		if i := len(list) - 1; i >= 0 && list[i].Protocol == p.Protocol && p.First <= list[i].Last {
			list[i].Last = max(list[i].Last, p.Last)
			continue
		}
		list = append(list, p)
	}
	return list
}

// servicesSet returns the set of these ports, which the rules of a policy share. If all are single ports, it is
// a hash table.
func (n *policyObjects) servicesSet(ports []Service) *set {
	name := names.ServicesSet(n.id, digestOf(ports))
	if i := slices.IndexFunc(n.sets, func(s *set) bool { return s.name == name }); i >= 0 {
		return n.sets[i]
	}
	s := n.table.policySet(name, nftables.TypeInetProto, nftables.TypeInetService)
	s.shared = true
	s.interval = slices.ContainsFunc(ports, func(p Service) bool { return p.First != p.Last })
	for _, p := range ports {
		e := element{set: s}
		e.key[0], e.end[0] = p.Protocol, p.Protocol
		binary.BigEndian.PutUint16(e.key[4:], p.First)
		if binary.BigEndian.PutUint16(e.end[4:], p.Last); !s.interval {
			e.end = key{}
		}
		n.elements = append(n.elements, e)
	}
	n.sets = append(n.sets, s)
	return s
}

func digestOf(ports []Service) string {
	sum := sha256.New()
	for _, p := range ports {
		fmt.Fprintf(sum, "%d/%d-%d ", p.Protocol, p.First, p.Last)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8])
}

// service returns the expressions that match a service, or one before the translation of its connection.
func (n *policyObjects) service(s *Service, original bool) ([]expr.Any, bool) {
	if s.Protocol == 0 {
		return nil, true
	}
	if s.Protocol == unix.IPPROTO_ICMP && n.table.family != unix.NFPROTO_IPV4 || s.Protocol == unix.IPPROTO_ICMPV6 && n.table.family != unix.NFPROTO_IPV6 {
		return nil, false
	}
	exprs := []expr.Any{protocol(0), equal([]byte{s.Protocol})}
	number := func(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
	var port expr.Any = port(0)
	if original {
		port = &expr.Ct{Key: expr.CtKeyPROTODST, Register: 1}
	}
	switch {
	case s.Type != nil:
		exprs = append(exprs, transport(0, 1, 0), equal([]byte{*s.Type}))
	case s.First == 0 && s.Last == 0:
	case s.First == s.Last:
		exprs = append(exprs, port, equal(number(s.First)))
	default:
		exprs = append(exprs, port, &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: number(s.First), ToData: number(s.Last)})
	}
	return exprs, true
}
