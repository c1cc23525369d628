package networkpolicy

import (
	"fmt"
	"net/netip"

	"github.com/allocnet/allocnet/internal/strictjson"
)

// prefixes returns the addresses of the block as disjoint prefixes.
func (b *ipBlock) prefixes() ([]netip.Prefix, error) {
	whole, err := parseCIDR(b.CIDR)
	if err != nil {
		return nil, strictjson.At("cidr", err)
	}
	left := []netip.Prefix{whole}
	for i, text := range b.Except {
		place := fmt.Sprintf("except[%d]", i)
		hole, err := parseCIDR(text)
		if err != nil {
			return nil, strictjson.At(place, err)
		}
		if hole.Bits() <= whole.Bits() || !whole.Contains(hole.Addr()) {
			return nil, strictjson.At(place, fmt.Errorf("%s is not a part of %s", hole, whole))
		}
		var next []netip.Prefix
		for _, p := range left {
			next = append(next, subtract(p, hole)...)
		}
		if left = next; len(left) > maxPrefixes {
			return nil, strictjson.At(place, fmt.Errorf("the rest of the block is more than %d prefixes", maxPrefixes))
		}
	}
	return left, nil
}

// maxPrefixes is the maximum number of prefixes of one block.
const maxPrefixes = 4096

// subtract returns the addresses of p that are not in hole, in ascending order.
func subtract(p, hole netip.Prefix) []netip.Prefix {
	switch {
	case !p.Overlaps(hole):
		return []netip.Prefix{p}
	case hole.Bits() <= p.Bits():
		return nil
	}
	low, high := halves(p)
	return append(subtract(low, hole), subtract(high, hole)...)
}

// halves returns the two prefixes that are one bit longer.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bit := p.Bits()
	bytes := p.Addr().AsSlice()
	bytes[bit/8] |= 0x80 >> (bit % 8)
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(p.Addr(), bit+1), netip.PrefixFrom(addr, bit+1)
}

// parseCIDR accepts bits after the prefix, as Kubernetes does.
func parseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%.64q is not a network in CIDR notation, such as 10.0.0.0/8 or fd00::/8", text)
	}
	return p.Masked(), nil
}
