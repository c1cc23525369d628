package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	labelPrefix      = "label:"
	allocationPrefix = "alloc:"
)

// ParsePeer reads and validates a peer in the notation of a command line:
//
//	10.0.0.0/8           addresses; a single one may be without its length
//	host                 also world and metadata
//	alloc:web-1          an allocation
//	label:app=db,tier    allocations with the label app=db and a label tier
//	label:               every allocation
//
// The conditions on labels are KEY=VALUE, KEY!=VALUE, KEY (exists) and !KEY (does not
// exist). "|" separates several values, one of which a label must or must not have.
func ParsePeer(text string) (Peer, error) {
	p, err := parsePeer(text)
	if err == nil {
		err = p.validate()
	}
	if err != nil {
		return Peer{}, fmt.Errorf("parse peer %.256q: %w; examples are 10.0.0.0/8, host, label:app=db and alloc:web-1", text, err)
	}
	return p, nil
}

func parsePeer(text string) (Peer, error) {
	if conditions, ok := strings.CutPrefix(text, labelPrefix); ok {
		return Peer{Selector: parseSelector(conditions)}, nil
	}
	if id, ok := strings.CutPrefix(text, allocationPrefix); ok {
		return Peer{Allocation: id}, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return Peer{CIDR: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	if strings.Contains(text, "/") {
		prefix, err := parseCIDR(text)
		return Peer{CIDR: prefix}, err
	}
	return Peer{Name: text}, nil
}

func parseSelector(text string) *Selector {
	s := &Selector{Labels: map[string]string{}}
	if text == "" {
		return s
	}
	for condition := range strings.SplitSeq(text, ",") {
		key, values, hasValue := strings.Cut(condition, "=")
		r := Requirement{Key: key, Operator: opExists}
		if hasValue {
			r.Operator, r.Values = opIn, strings.Split(values, "|")
			if r.Key, hasValue = strings.CutSuffix(key, "!"); hasValue {
				r.Operator = opNotIn
			}
		} else if r.Key, hasValue = strings.CutPrefix(key, "!"); hasValue {
			r.Operator = opDoesNotExist
		}
		_, twice := s.Labels[r.Key]
		if r.Operator == opIn && len(r.Values) == 1 && !twice {
			s.Labels[r.Key] = r.Values[0]
			continue
		}
		s.Expressions = append(s.Expressions, r)
	}
	return s
}

// String returns the peer in the notation that ParsePeer reads.
func (p Peer) String() string {
	switch {
	case p.Selector != nil:
		return labelPrefix + p.Selector.String()
	case p.Allocation != "":
		return allocationPrefix + p.Allocation
	case p.Name != "":
		return p.Name
	default:
		return p.CIDR.String()
	}
}

// String returns the conditions of the selector in the notation that ParsePeer reads after
// "label:". Selectors with the same conditions in another order have the same text.
func (s Selector) String() string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		list = append(list, key+"="+s.Labels[key])
	}
	for _, r := range s.Expressions {
		values := slices.Sorted(slices.Values(r.Values))
		joined := strings.Join(slices.Compact(values), "|")
		switch r.Operator {
		case opIn:
			list = append(list, r.Key+"="+joined)
		case opNotIn:
			list = append(list, r.Key+"!="+joined)
		case opExists:
			list = append(list, r.Key)
		case opDoesNotExist:
			list = append(list, "!"+r.Key)
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// ParseService reads and validates a service in the notation of a command line: "tcp",
// "tcp/80", "udp/8000-9000", "icmp" or, with a type, "icmp/8".
func ParseService(text string) (Service, error) {
	s, err := parseService(text)
	if err == nil {
		_, _, err = s.span()
	}
	if err != nil {
		return Service{}, fmt.Errorf("parse service %.256q: %w; examples are tcp/80, udp/8000-9000 and icmp/8", text, err)
	}
	return s, nil
}

func parseService(text string) (Service, error) {
	protocol, detail, found := strings.Cut(text, "/")
	s := Service{Protocol: protocol}
	switch {
	case !found:
	case detail == "":
		return s, fmt.Errorf(`nothing follows "/"`)
	case protocol == "icmp" || protocol == "icmpv6":
		n, err := strconv.ParseUint(detail, 10, 8)
		if err != nil {
			return s, fmt.Errorf("type %.64q is not a number from 0 to 255", detail)
		}
		t := uint8(n)
		s.Type = &t
	default:
		s.Ports = detail
	}
	return s, nil
}

// String returns the service in the notation that ParseService reads.
func (s Service) String() string {
	switch {
	case s.Type != nil:
		return fmt.Sprintf("%s/%d", s.Protocol, *s.Type)
	case s.Ports != "":
		return s.Protocol + "/" + s.Ports
	default:
		return s.Protocol
	}
}

// ParseFlow reads a service with one port or one type, as "tcp/443", "443/tcp" and "icmp/8".
// Without a type, icmp and icmpv6 are an echo request.
func ParseFlow(text string) (Flow, error) {
	first, second, found := strings.Cut(text, "/")
	if _, err := strconv.ParseUint(first, 10, 16); err == nil && found {
		text = second + "/" + first
	}
	s, err := ParseService(text)
	if err != nil {
		return Flow{}, err
	}
	f := Flow{Protocol: protocols[s.Protocol]}
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
