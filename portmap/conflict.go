package portmap

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Published returns the host port with its address, if it has one, and its protocol, such as
// "192.0.2.1:8080/tcp".
func (m Mapping) Published() string {
	port := strconv.Itoa(m.HostPort)
	if m.HostIP != "" {
		port = net.JoinHostPort(m.HostIP, port)
	}
	return port + "/" + m.Protocol
}

// Overlaps reports whether one packet can match both mappings: protocol and host
// port are the same, and the host IPs have an address in common. The host IP ""
// includes every address, "0.0.0.0" every IPv4 address and "::" every IPv6
// address. The notation of an address does not matter, nor does a zone. Text that
// is not an address overlaps only "" and equal text.
func (m Mapping) Overlaps(o Mapping) bool {
	return m.slot() == o.slot() && hostIPsOverlap(m.HostIP, o.HostIP)
}

// FindConflict returns the first mapping of wanted that overlaps a mapping of
// taken, the first such mapping of taken, and whether there is a conflict. taken
// must not include the mappings of the allocation itself.
//
// The running time grows with the length of both lists, the memory only with that of
// wanted: wanted has the ports of one allocation, taken those of a whole host.
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

// slot is the part of a mapping that two mappings must share to overlap.
type slot struct {
	protocol string
	port     int
}

func (m Mapping) slot() slot {
	return slot{strings.ToLower(m.Protocol), m.HostPort}
}

// hostIPsOverlap reports whether two host IPs have an address in common.
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

// index holds the mappings of one list of ports, by slot.
type index map[slot][]claim

type claim struct {
	port    int // index of the port in the list
	mapping Mapping
}

// add adds the mappings of one port and returns a ConflictError for each earlier port
// that they overlap.
func (c index) add(port int, mappings []Mapping) []error {
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
