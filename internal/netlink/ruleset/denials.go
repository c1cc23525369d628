package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Denial is a flow whose packets a policy has dropped.
type Denial struct {
	Ingress  bool       // the policy of the receiver has dropped them
	Address  netip.Addr // of the allocation whose policy it was
	Peer     netip.Addr // the other end
	Protocol uint8
	Port     uint16 // the destination port; of ICMP the type
	Count
}

// Count is a number of packets and their size.
type Count struct{ Packets, Bytes uint64 }

// Denials returns the flows whose packets policies have dropped within the last five
// minutes. Some may be missing: see Unlisted.
func (r *Ruleset) Denials(ctx context.Context) ([]Denial, error) {
	var list []Denial
	for _, t := range policyTables {
		err := r.eachDenial(ctx, t, func(d Denial, _ *element) { list = append(list, d) })
		if err != nil {
			return nil, fmt.Errorf("list the flows that policies have dropped: %w", err)
		}
	}
	return list, nil
}

// eachDenial calls a function with each flow of a table, and its element.
func (r *Ruleset) eachDenial(ctx context.Context, t *table, each func(Denial, *element)) error {
	for direction, s := range t.policy.flows {
		err := r.dumpCounters(ctx, s, func(e *element, c Count) { each(t.denial(direction, e.key[:], c), e) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *table) denial(direction int, key []byte, c Count) Denial {
	n := t.addrLen
	d := Denial{Protocol: key[0], Ingress: direction == ingress, Count: c}
	d.Address, _ = netip.AddrFromSlice(key[4 : 4+n])
	d.Peer, _ = netip.AddrFromSlice(key[4+n : 4+2*n])
	service := key[4+2*n:]
	d.Port = binary.BigEndian.Uint16(service)
	if d.Protocol == unix.IPPROTO_ICMP || d.Protocol == unix.IPPROTO_ICMPV6 {
		d.Port = uint16(service[0])
	}
	return d
}

// Unlisted are packets that a policy has dropped and that belong to no flow of Denials: each allocation has a
// limit, and the kernel lists at most 16,384 flows of each family and direction.
type Unlisted struct {
	Ingress bool
	Address netip.Addr // of the allocation whose policy it was
	Count              // since five minutes without such packets
}

// Unlisted returns these packets, unless the last ones were dropped more than five minutes ago.
func (r *Ruleset) Unlisted(ctx context.Context) ([]Unlisted, error) {
	var list []Unlisted
	for _, t := range policyTables {
		for direction, s := range t.policy.unlisted {
			err := r.dumpCounters(ctx, s, func(e *element, c Count) {
				u := Unlisted{Ingress: direction == ingress, Count: c}
				u.Address, _ = netip.AddrFromSlice(e.key[:t.addrLen])
				list = append(list, u)
			})
			if err != nil {
				return nil, fmt.Errorf("count the packets of flows that are not listed: %w", err)
			}
		}
	}
	return list, nil
}

// ForgetDenials removes the flows that the policies of addresses have dropped, and with gone, if another
// allocation may get the addresses, also those that policies of others have dropped from and to them.
func (r *Ruleset) ForgetDenials(ctx context.Context, addresses []netip.Addr, gone bool) error {
	forgotten := func(d *Denial) bool {
		return slices.Contains(addresses, d.Address) || gone && slices.Contains(addresses, d.Peer)
	}
	var err error
	for range attempts {
		if err = r.forgetDenials(ctx, forgotten, listingOf(addresses)); !errors.Is(err, unix.ENOENT) { // one has timed out
			break
		}
	}
	if err != nil {
		return fmt.Errorf("remove flows that policies have dropped: %w", err)
	}
	return nil
}

// forgetDenials removes flows, and those of the other elements that exist.
func (r *Ruleset) forgetDenials(ctx context.Context, forgotten func(*Denial) bool, others []element) error {
	var gone []element
	for _, t := range policyTables {
		err := r.eachDenial(ctx, t, func(d Denial, e *element) {
			if forgotten(&d) {
				gone = append(gone, *e)
			}
		})
		if err != nil {
			return err
		}
	}
	found, err := r.lookUp(ctx, others)
	if err != nil {
		return err
	}
	gone = append(gone, slices.DeleteFunc(found, func(e element) bool { return e.set == nil })...)
	if len(gone) == 0 {
		return nil
	}
	return r.apply(ctx, change{remove: gone})
}

// listingOf returns the elements by which the lists of addresses are limited.
func listingOf(addresses []netip.Addr) (list []element) {
	for _, a := range addresses {
		a = a.Unmap()
		t := policies6.policy
		if a.Is4() {
			t = policies4.policy
		}
		for d := range directions {
			for _, s := range []*set{t.listing[d], t.unlisted[d]} {
				e := element{set: s}
				copy(e.key[:], a.AsSlice())
				list = append(list, e)
			}
		}
	}
	return list
}

// Dropped are the packets of one attachment that policies have dropped.
type Dropped struct {
	Owner           names.Owner
	Egress, Ingress Count // from the allocation, and to it
}

// Dropped returns how many packets policies have dropped, of each attachment that has a policy.
func (r *Ruleset) Dropped(ctx context.Context) ([]Dropped, error) {
	var list []Dropped
	at := map[string]int{}
	for _, t := range policyTables {
		for d, s := range t.policy.dropped {
			err := r.dumpCounters(ctx, s, func(e *element, c Count) {
				owner, ok := names.ParseOwner(e.owner)
				if !ok {
					return
				}
				i, known := at[e.owner]
				if !known {
					i = len(list)
					at[e.owner], list = i, append(list, Dropped{Owner: owner})
				}
				to := [2]*Count{&list[i].Egress, &list[i].Ingress}[d]
				to.Packets, to.Bytes = to.Packets+c.Packets, to.Bytes+c.Bytes
			})
			if err != nil {
				return nil, fmt.Errorf("count the packets that policies have dropped: %w", err)
			}
		}
	}
	return list, nil
}

// dumpCounters calls each with every element of a set, once, and its counter. A set that does
// not exist has no elements.
func (r *Ruleset) dumpCounters(ctx context.Context, s *set, each func(*element, Count)) error {
	seen := map[key]bool{}
	err := r.dumpAttributes(ctx, s, func(attrs []byte) {
		if e := readElement(s, attrs); !seen[e.key] {
			seen[e.key] = true
			each(&e, readCounter(attrs))
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// readCounter reads the counter of an element.
func readCounter(attrs []byte) (c Count) {
	const elementExpr, exprData, counterBytes, counterPackets = 7, 2, 1, 2 // NFTA_SET_ELEM_EXPR, NFTA_EXPR_DATA, NFTA_COUNTER_BYTES, _PACKETS
	sock.EachAttribute(attrs, func(kind uint16, value []byte) {
		if kind != elementExpr {
			return
		}
		sock.EachAttribute(value, func(kind uint16, value []byte) {
			if kind != exprData {
				return
			}
			sock.EachAttribute(value, func(kind uint16, value []byte) {
				switch {
				case len(value) < 8:
				case kind == counterBytes:
					c.Bytes = binary.BigEndian.Uint64(value)
				case kind == counterPackets:
					c.Packets = binary.BigEndian.Uint64(value)
				}
			})
		})
	})
	return c
}
