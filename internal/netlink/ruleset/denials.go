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
// minutes. The kernel lists at most 16,384 of each family, so some may be missing.
func (r *Ruleset) Denials(ctx context.Context) ([]Denial, error) {
	var list []Denial
	for _, t := range policyTables {
		err := r.dumpCounters(ctx, t.policy.denied, func(e *element, c Count) {
			list = append(list, t.denial(e.key[:], c))
		})
		if err != nil {
			return nil, fmt.Errorf("list the flows that policies have dropped: %w", err)
		}
	}
	return list, nil
}

func (t *table) denial(key []byte, c Count) Denial {
	n := t.addrLen
	d := Denial{Protocol: key[0], Count: c}
	d.Address, _ = netip.AddrFromSlice(key[4 : 4+n])
	d.Peer, _ = netip.AddrFromSlice(key[4+n : 4+2*n])
	service := key[4+2*n:]
	d.Port = binary.BigEndian.Uint16(service)
	if d.Protocol == unix.IPPROTO_ICMP || d.Protocol == unix.IPPROTO_ICMPV6 {
		d.Port = uint16(service[0])
	}
	d.Ingress = binary.NativeEndian.Uint32(service[4:]) == ingress
	return d
}

// ForgetDenials removes the flows of addresses, which another allocation may get.
func (r *Ruleset) ForgetDenials(ctx context.Context, addresses []netip.Addr) error {
	var err error
	for range attempts {
		var gone []element
		for _, t := range policyTables {
			err = r.dumpCounters(ctx, t.policy.denied, func(e *element, c Count) {
				if slices.Contains(addresses, t.denial(e.key[:], c).Address) {
					gone = append(gone, *e)
				}
			})
			if err != nil {
				return fmt.Errorf("remove flows that policies have dropped: %w", err)
			}
		}
		if len(gone) == 0 {
			return nil
		}
		if err = r.apply(ctx, change{remove: gone}); !errors.Is(err, unix.ENOENT) { // one has timed out
			break
		}
	}
	if err != nil {
		return fmt.Errorf("remove flows that policies have dropped: %w", err)
	}
	return nil
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
