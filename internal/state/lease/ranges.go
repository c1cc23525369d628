package lease

import (
	"iter"
	"net/netip"
	"strings"
)

// Range is the addresses from First to Last, both included, but for Gateway,
// which may be zero. First is not above Last, and of the same family.
type Range struct{ First, Last, Gateway netip.Addr }

// Contains reports whether an address lies between the ends.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.BitLen() == r.First.BitLen() && r.First.Compare(addr) <= 0 && addr.Compare(r.Last) <= 0
}

// RangeSet is ranges that stand in for each other: an owner gets one address of
// all of them. It has at least one.
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

// leasable reports whether Reserve may give an address out.
func (s RangeSet) leasable(addr netip.Addr) bool {
	i := s.index(addr)
	return i >= 0 && s[i].Gateway != addr
}

// String is the ranges' ends: 10.0.0.1-10.0.0.9,10.0.1.1-10.0.1.9.
func (s RangeSet) String() string {
	text := make([]string, len(s))
	for i, r := range s {
		text[i] = r.First.String() + "-" + r.Last.String()
	}
	return strings.Join(text, ",")
}

// after goes once around all addresses that can be given out, starting with the
// one that follows last; or at the beginning, where last is none of them.
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

// next is the address that follows one of range i, and its range.
func (s RangeSet) next(i int, addr netip.Addr) (int, netip.Addr) {
	if addr != s[i].Last {
		return i, addr.Next()
	}
	i = (i + 1) % len(s)
	return i, s[i].First
}
