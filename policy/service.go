package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Service is a protocol and, optionally, some of its ports or one of its types. Ports are
// those of the server: the destination of the first packet of a connection.
type Service struct {
	// Protocol is "tcp", "udp", "sctp", "icmp" (of IPv4) or "icmpv6".
	Protocol string `json:"protocol"`
	// Ports is one port ("80") or a range of ports ("8000-9000") of tcp, udp and sctp.
	// Empty means all.
	Ports string `json:"ports,omitempty"`
	// Type is a type of icmp or icmpv6, such as 8 (echo request of icmp). nil means all.
	Type *uint8 `json:"type,omitempty"`
}

// The protocol numbers of IANA.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

var protocols = map[string]uint8{
	"tcp": protoTCP, "udp": protoUDP, "sctp": protoSCTP, "icmp": protoICMP, "icmpv6": protoICMPv6,
}

// ProtocolName returns the name that a Service has for a protocol, or the number of a protocol
// that no Service has.
func ProtocolName(number uint8) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}

// Span is a service in numbers: all packets, those of a protocol, or a range of its ports.
// The type of ICMP takes the place of the port. The zero value stands for all packets.
type Span struct {
	Protocol    uint8
	Ports       bool // only ports from First to Last
	First, Last uint16
}

func (s Span) matches(f Flow) bool {
	switch {
	case s.Protocol == 0:
		return true
	case s.Protocol != f.Protocol:
		return false
	default:
		return !s.Ports || s.First <= f.Port && f.Port <= s.Last
	}
}

// String returns the service in the notation of ParseService, or "any" for all packets.
func (s Span) String() string {
	if s.Protocol == 0 {
		return "any"
	}
	name := ProtocolName(s.Protocol)
	switch {
	case !s.Ports:
		return name
	case s.First == s.Last:
		return fmt.Sprintf("%s/%d", name, s.First)
	default:
		return fmt.Sprintf("%s/%d-%d", name, s.First, s.Last)
	}
}

// hasPorts reports whether it is about some ports of a protocol that has ports.
func (s Span) hasPorts() bool {
	return s.Ports && s.Protocol != protoICMP && s.Protocol != protoICMPv6
}

// spans returns the services of a rule in numbers. It leaves out invalid ones.
func (r *Rule) spans() []Span {
	if len(r.Services) == 0 {
		return []Span{{}}
	}
	list := make([]Span, 0, len(r.Services))
	for _, service := range r.Services {
		if s, _, err := service.span(); err == nil {
			list = append(list, s)
		}
	}
	return list
}

// span returns the service in numbers, or the name of the invalid field and an error.
func (s Service) span() (out Span, field string, err error) {
	number, ok := protocols[s.Protocol]
	if !ok {
		return out, "protocol", fmt.Errorf("%.64q is not tcp, udp, sctp, icmp or icmpv6", s.Protocol)
	}
	out.Protocol = number
	icmp := number == protoICMP || number == protoICMPv6
	switch {
	case icmp && s.Ports != "":
		return out, "ports", fmt.Errorf("%s has no ports; use type", s.Protocol)
	case !icmp && s.Type != nil:
		return out, "type", fmt.Errorf("%s has no types; use ports", s.Protocol)
	case s.Type != nil:
		out.Ports, out.First, out.Last = true, uint16(*s.Type), uint16(*s.Type)
	case s.Ports != "":
		out.Ports = true
		if out.First, out.Last, err = parsePorts(s.Ports); err != nil {
			return out, "ports", err
		}
	}
	return out, "", nil
}

// parsePorts reads a port or a range of ports.
func parsePorts(text string) (first, last uint16, err error) {
	start, end, isRange := strings.Cut(text, "-")
	if first, err = parsePort(start); err != nil || !isRange {
		return first, first, err
	}
	if last, err = parsePort(end); err != nil {
		return 0, 0, err
	}
	if last < first {
		return 0, 0, fmt.Errorf("%.64q ends before it begins", text)
	}
	return first, last, nil
}

var errPort = errors.New(`a port is a number from 1 to 65535; examples of ports are "80" and "8000-9000"`)

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return 0, fmt.Errorf("%.64q: %w", text, errPort)
	}
	return uint16(n), nil
}
