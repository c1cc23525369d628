package portmap

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const maxPort = 65535

const (
	wantPort     = "must be 1 to 65535"
	wantTo       = "must be 1 to 65535, or less than 1 for the same as value"
	wantCount    = "must not be negative; 0 and 1 mean one port"
	wantProtocol = "must be tcp, udp or sctp"
)

var (
	errHostIP = errors.New("must be an IPv4 or IPv6 address, or empty for all addresses")
	errZone   = errors.New("must have no zone: a mapping knows addresses, not links")
)

var (
	protocols        = []string{"tcp", "udp", "sctp"}
	defaultProtocols = []string{"tcp", "udp"}
)

// Options are the options of Mappings. The zero value is the default.
type Options struct {
	// IgnoreHostIP publishes every port on all addresses of the host. Mappings
	// then neither uses nor validates the host IPs of the ports.
	IgnoreHostIP bool
}

// Mappings returns one mapping for each port of each range and each protocol:
// in the order of the list, then by port, then by protocol in the order given.
// No ports give no mappings.
//
// The error joins all faults of the list, in its order. errors.As finds a
// *PortError for an invalid field and a *ConflictError for two ports that overlap.
// Of two ranges that overlap only the first conflict is reported. On an error the
// mappings are nil.
func Mappings(ports []Port, opts Options) ([]Mapping, error) {
	var (
		all   []Mapping
		errs  []error
		taken = index{}
	)
	for i, p := range ports {
		if opts.IgnoreHostIP {
			p.HostIP = ""
		}
		p, faults := normalize(i, p)
		errs = append(errs, faults...)
		if len(faults) > 0 {
			continue
		}
		mappings := expand(p)
		errs = append(errs, taken.add(i, mappings)...)
		all = append(all, mappings...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}

// normalize sets the defaults of a port, converts host IP and protocols to their
// canonical spelling, and returns an error for each invalid field.
func normalize(index int, p Port) (Port, []error) {
	var errs []error
	fault := func(field string, value any, reason string) {
		errs = append(errs, &PortError{index, p.Label, field, fmt.Sprint(value), reason})
	}
	if p.Value < 1 || p.Value > maxPort {
		fault("value", p.Value, wantPort)
	}
	if p.To > maxPort {
		fault("to", p.To, wantTo)
	}
	if limit := longestRange(p); p.Range < 0 {
		fault("range", p.Range, wantCount)
	} else if p.Range > limit {
		fault("range", p.Range, fmt.Sprintf("must be at most %d, so that the last port is not beyond %d", limit, maxPort))
	}
	if ip, err := normalizeHostIP(p.HostIP); err != nil {
		fault("hostIP", p.HostIP, err.Error())
	} else {
		p.HostIP = ip
	}
	known, unknown := normalizeProtocols(p.Protocols)
	for _, name := range unknown {
		fault("protocols", name, wantProtocol)
	}
	p.Protocols = known
	if len(known) == 0 {
		p.Protocols = defaultProtocols
	}
	if p.To < 1 {
		p.To = p.Value
	}
	p.Range = max(p.Range, 1)
	return p, errs
}

// longestRange returns the number of ports from the start of the range to the highest
// port, on the host and in the sandbox. A start beyond the highest port is ignored
// here, because it is reported as a fault of its own field.
func longestRange(p Port) int {
	start := 1
	for _, port := range []int{p.Value, p.To} {
		if port <= maxPort {
			start = max(start, port)
		}
	}
	return maxPort - start + 1
}

// normalizeHostIP returns the shortest notation of a host IP; "" stays empty.
func normalizeHostIP(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return "", errHostIP
	}
	if addr.Zone() != "" {
		return "", errZone
	}
	return addr.Unmap().String(), nil
}

// normalizeProtocols returns the known names of a list, in lower case and without
// duplicates, and the unknown names unchanged.
func normalizeProtocols(list []string) (known, unknown []string) {
	for _, name := range list {
		lower := strings.ToLower(name)
		switch {
		case !slices.Contains(protocols, lower):
			unknown = append(unknown, name)
		case !slices.Contains(known, lower):
			known = append(known, lower)
		}
	}
	return known, unknown
}

// expand returns the mappings of a valid port.
func expand(p Port) []Mapping {
	mappings := make([]Mapping, 0, p.Range*len(p.Protocols))
	for n := range p.Range {
		for _, protocol := range p.Protocols {
			mappings = append(mappings, Mapping{
				Label:         p.Label,
				HostPort:      p.Value + n,
				ContainerPort: p.To + n,
				Protocol:      protocol,
				HostIP:        p.HostIP,
			})
		}
	}
	return mappings
}
