package lease

import (
	"iter"
	"net/netip"
	"strings"
)

// Range is the addresses from First to Last, inclusive, without Gateway, which may be
// zero. First is not greater than Last and has the same family.
type Range struct{ First, Last, Gateway netip.Addr }

// Contains reports whether an address lies between First and Last.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.BitLen() == r.First.BitLen() && r.First.Compare(addr) <= 0 && addr.Compare(r.Last) <= 0
}

// RangeSet is one or more alternative ranges: an owner gets one address from all of
// them together.
type RangeSet []Range

// Contains reports whether an address lies in one of the ranges.
func (s RangeSet) Contains(addr netip.Addr) bool { return s.index(addr) >= 0 }

func (s RangeSet) index(addr netip.Addr) int {
	for i, r := range s {
		if r.Contains(addr) {
			return i
		}
	}
	return -1
}

// leasable reports whether Reserve may lease an address.
func (s RangeSet) leasable(addr netip.Addr) bool {
	i := s.index(addr)
	return i >= 0 && s[i].Gateway != addr
}

// String returns the ranges in the form 10.0.0.1-10.0.0.9,10.0.1.1-10.0.1.9.
func (s RangeSet) String() string {
	text := make([]string, len(s))
	for i, r := range s {
		text[i] = r.First.String() + "-" + r.Last.String()
	}
	return strings.Join(text, ",")
}

// after iterates once over all leasable addresses, starting with the one after last. It
// starts at the beginning if last is not in a range.
func (s RangeSet) after(last netip.Addr) iter.Seq[netip.Addr] {
	start, first := 0, s[0].First
	if i := s.index(last); i >= 0 {
		start, first = s.next(i, last)
	}
	return func(yield func(netip.Addr) bool) {
		i, addr := start, first
		for {
			if addr != s[i].Gateway && !yield(addr) {
				return
			}
			if i, addr = s.next(i, addr); addr == first && i == start {
				return
			}
		}
	}
}

// next returns the address after addr, which is in range i, and the index of its range.
func (s RangeSet) next(i int, addr netip.Addr) (int, netip.Addr) {
	if addr != s[i].Last {
		return i, addr.Next()
	}
	i = (i + 1) % len(s)
	return i, s[i].First
}
