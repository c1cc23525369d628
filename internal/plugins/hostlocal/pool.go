package hostlocal

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/allocnet/allocnet/internal/state/lease"
)

// pool is a range set with the subnet and the gateway of each of its ranges.
type pool struct {
	set   lease.RangeSet
	nets  []netip.Prefix
	gates []net.IP
}

// newPool returns the pool of a range set. Its ranges must have one address family and
// must not overlap.
func newPool(ranges []addressRange) (pool, error) {
	if len(ranges) == 0 {
		return pool{}, errors.New("empty range set")
	}
	var p pool
	for _, r := range ranges {
		subnet, err := r.subnet()
		if err != nil {
			return pool{}, err
		}
		gateway, err := orElse(r.Gateway, subnet.Addr().Next())
		if err != nil {
			return pool{}, err
		}
		next, err := r.ends(subnet)
		if err != nil {
			return pool{}, err
		}
		next.Gateway = gateway
		if len(p.set) > 0 && p.set[0].First.BitLen() != next.First.BitLen() {
			return pool{}, errors.New("mixed address families")
		}
		for _, other := range p.set {
			if overlap(other, next) {
				return pool{}, fmt.Errorf("subnets %s and %s overlap", lease.RangeSet{other}, lease.RangeSet{next})
			}
		}
		p.set = append(p.set, next)
		p.nets = append(p.nets, subnet)
		p.gates = append(p.gates, gateway.AsSlice())
	}
	return p, nil
}

// subnet returns the subnet of a range. It must be a network address with room
// for two hosts.
func (r addressRange) subnet() (netip.Prefix, error) {
	addr, err := toAddr(r.Subnet.IP)
	if err != nil {
		return netip.Prefix{}, err
	}
	ones, bits := r.Subnet.Mask.Size()
	if bits != addr.BitLen() {
		return netip.Prefix{}, errors.New("subnet and mask are of different families")
	}
	subnet := netip.PrefixFrom(addr, ones)
	if ones > bits-2 {
		return netip.Prefix{}, fmt.Errorf("network %s is too small to allocate from", subnet)
	}
	if subnet.Masked() != subnet {
		return netip.Prefix{}, fmt.Errorf("network %s has host bits set, the network address is %s", subnet, subnet.Masked().Addr())
	}
	return subnet, nil
}

// ends returns the range's first and last address. The default is the whole
// subnet without the network address and the IPv4 broadcast address.
func (r addressRange) ends(subnet netip.Prefix) (lease.Range, error) {
	first, err := orElse(r.RangeStart, subnet.Addr().Next())
	if err != nil {
		return lease.Range{}, err
	}
	if !subnet.Contains(first) {
		return lease.Range{}, fmt.Errorf("rangeStart %s not in network %s", first, subnet)
	}
	last, err := orElse(r.RangeEnd, lastOf(subnet))
	if err != nil {
		return lease.Range{}, err
	}
	if !subnet.Contains(last) || last.Less(first) {
		return lease.Range{}, fmt.Errorf("rangeEnd %s not in network %s, or before %s", last, subnet, first)
	}
	return lease.Range{First: first, Last: last}, nil
}

// orElse returns ip, or the default if there is none.
func orElse(ip net.IP, or netip.Addr) (netip.Addr, error) {
	if ip == nil {
		return or, nil
	}
	return toAddr(ip)
}

func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().AsSlice()
	for i := subnet.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	if addr.Is4() {
		return addr.Prev()
	}
	return addr
}

// find returns the subnet and the gateway of an address.
func (p pool) find(addr netip.Addr) (netip.Prefix, net.IP) {
	for i, r := range p.set {
		if r.Contains(addr) {
			return p.nets[i], p.gates[i]
		}
	}
	return netip.Prefix{}, nil
}

func (p pool) overlaps(other pool) bool {
	for _, a := range p.set {
		for _, b := range other.set {
			if overlap(a, b) {
				return true
			}
		}
	}
	return false
}

func overlap(a, b lease.Range) bool {
	return a.Contains(b.First) || a.Contains(b.Last) || b.Contains(a.First) || b.Contains(a.Last)
}
