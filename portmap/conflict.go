package portmap

import (
	"net/netip"
	"strings"
)

// Overlaps reports whether a packet could be meant for both mappings: protocol
// and host port are the same, and the host IPs have an address in common. ""
// has one with every host IP, "0.0.0.0" with every IPv4 address, "::" with every
// IPv6 address, and any other address with itself. The spelling of an address
// does not matter and neither does a zone. What is not an address overlaps only
// "" and its own spelling.
func (m Mapping) Overlaps(o Mapping) bool {
	return m.slot() == o.slot() && hostIPsOverlap(m.HostIP, o.HostIP)
}

// FindConflict returns the first mapping of wanted that overlaps one of taken,
// with the first of taken that it overlaps, and whether there is any. Mappings
// that the allocation itself holds already must not be among taken.
//
// The time it takes grows with the sum of both lists and the memory with wanted
// alone, because wanted is the short list: the ports of one allocation against
// those of a whole host.
func FindConflict(wanted, taken []Mapping) (w, t Mapping, found bool) {
	index := make(map[slot][]int, len(wanted))
	for i, m := range wanted {
		index[m.slot()] = append(index[m.slot()], i)
	}
	best := len(wanted)
	for _, o := range taken {
		for _, i := range index[o.slot()] {
			if i >= best {
				break
			}
			if wanted[i].Overlaps(o) {
				best, t = i, o
			}
		}
	}
	if best == len(wanted) {
		return Mapping{}, Mapping{}, false
	}
	return wanted[best], t, true
}

// slot is what two mappings must share before their addresses matter.
type slot struct {
	protocol string
	port     int
}

func (m Mapping) slot() slot {
	return slot{strings.ToLower(m.Protocol), m.HostPort}
}

func hostIPsOverlap(a, b string) bool {
	if a == b || a == "" || b == "" {
		return true
	}
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX != nil || errY != nil {
		return false
	}
	x, y = x.Unmap().WithZone(""), y.Unmap().WithZone("")
	if x.Is4() != y.Is4() {
		return false
	}
	return x == y || x.IsUnspecified() || y.IsUnspecified()
}

// claims are the mappings of the ports of one list, by slot.
type claims map[slot][]claim

type claim struct {
	port    int // its index in the list
	mapping Mapping
}

// add enters the mappings of one port and returns a ConflictError for every
// earlier port that they overlap.
func (c claims) add(port int, mappings []Mapping) []error {
	var errs []error
	reported := map[int]bool{}
	for _, m := range mappings {
		s := m.slot()
		for _, o := range c[s] {
			if !reported[o.port] && m.Overlaps(o.mapping) {
				reported[o.port] = true
				errs = append(errs, &ConflictError{Mapping: m, Other: o.mapping})
			}
		}
		c[s] = append(c[s], claim{port, m})
	}
	return errs
}
