package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/retry"
)

// connections has the entries of the network namespace of the calling thread.
var connections = conntrack.Here()

// conntrackFinder finds connection tracking entries of connections to the allocation.
type conntrackFinder struct {
	*search
	matched bool // whether look has found an entry to delete
}

// flows is a filter for the entries of one address family, and counts the matching
// ones.
type flows struct {
	family family
	isOurs func(netip.Addr) bool
	ports  map[uint16][]netip.Addr // UDP host ports -> host addresses; the zero address stands for all
	local  []netip.Prefix          // addresses of the host
	counts map[flowKey]int         // entries with DNAT to the allocation
	// strays is the number of the other matching entries: UDP entries of the host ports
	// with another destination, and connections from and to the allocation without
	// DNAT. They are deleted, but not counted as left, because clients that keep
	// sending create them again at once.
	strays int
}

// flowKey groups entries for the count.
type flowKey struct{ protocol, addr string }

var trackedProtocols = map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}

// match reports whether an entry is to be deleted, and counts it. Entries without DNAT
// match for every protocol, because an address is free only if it has no entries.
func (f *flows) match(e conntrack.Entry) bool {
	protocol, tracked := trackedProtocols[e.Protocol]
	switch {
	case tracked && e.Destination != e.Answers && f.isOurs(e.Answers):
		f.counts[flowKey{protocol, e.Answers.String()}]++
	case f.isOurs(e.Answers) || f.isOurs(e.Source), protocol == "udp" && f.isHostPort(e.Destination, e.Port):
		f.strays++
	default:
		return false
	}
	return true
}

// isHostPort reports whether an address and port are a host port of the allocation. A
// port that is published on all addresses applies only to the addresses of the host,
// not to forwarded packets with the same port.
func (f *flows) isHostPort(addr netip.Addr, port uint16) bool {
	return slices.ContainsFunc(f.ports[port], func(host netip.Addr) bool {
		if host.IsValid() && (!host.IsUnspecified() || host.Is4() != addr.Is4()) {
			return addr == host
		}
		return slices.ContainsFunc(f.local, func(p netip.Prefix) bool { return p.Contains(addr) })
	})
}

func (f *flows) leftovers() []Leftover {
	var list []Leftover
	for key, n := range f.counts {
		list = append(list, Leftover{
			Kind:   KindConntrack,
			Where:  string(f.family) + " " + key.protocol,
			Object: fmt.Sprintf("%s (entries: %d)", key.addr, n),
		})
	}
	return list
}

// possible reports whether the allocation can have connections.
func (f *conntrackFinder) possible() bool {
	return len(f.target.Ports) > 0 || len(f.addresses.own) > 0 || f.within(func(s scope) bool { return s.ports })
}

// find returns the entries with DNAT to the allocation. There are none if no address of
// it is known.
func (f *conntrackFinder) find(ctx context.Context) ([]Leftover, error) {
	if len(f.addresses.own) == 0 {
		return nil, nil
	}
	return f.look(ctx)
}

// look returns the same leftovers as find, and sets matched, also for strays.
func (f *conntrackFinder) look(ctx context.Context) (list []Leftover, err error) {
	f.matched = false
	if !f.possible() || len(f.addresses.own) == 0 && len(udpPorts(f.target)) == 0 {
		return nil, nil
	}
	var errs []error
	for _, fam := range f.families() {
		matching, err := f.list(ctx, fam)
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s connections: %w", fam, err))
			continue
		}
		f.matched = f.matched || len(matching.counts) > 0 || matching.strays > 0
		list = append(list, matching.leftovers()...)
	}
	return list, errors.Join(errs...)
}

// list counts the matching entries of one family.
func (f *conntrackFinder) list(ctx context.Context, fam family) (*flows, error) {
	return f.walk(ctx, fam, func(matching *flows) error {
		return connections.List(ctx, fam.number(), func(e conntrack.Entry) { matching.match(e) })
	})
}

// walk calls fill with the filter of one family, and again if the list has changed
// meanwhile. A kernel without connection tracking has no entries.
func (f *conntrackFinder) walk(ctx context.Context, fam family, fill func(*flows) error) (*flows, error) {
	matching := &flows{family: fam, isOurs: f.addresses.isOurs, ports: udpPorts(f.target)}
	err := retry.Do(ctx, func() (err error) {
		matching.counts, matching.strays = make(map[flowKey]int), 0
		if matching.local, err = localAddresses(fam, matching.ports); err != nil {
			return err
		}
		return fill(matching)
	})
	if netfilter.IsUnsupported(err) {
		return matching, nil
	}
	return matching, err
}

// maxPasses bounds how often entries are deleted. Packets that were processed while the
// rules were removed can create each entry once more; rules that stay create entries
// again and again.
const maxPasses = 5

// remove deletes entries until a pass finds none with DNAT to the allocation. It does
// not use the result of find, because entries may have been created before the rules
// were removed.
func (f *conntrackFinder) remove(ctx context.Context) ([]Leftover, error) {
	if !f.possible() {
		return nil, nil
	}
	var (
		list []Leftover
		errs []error
	)
	for _, fam := range f.families() {
		removed, err := f.empty(ctx, fam)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete %s connections: %w", fam, err))
		}
		list = append(list, removed.leftovers()...)
	}
	return list, errors.Join(errs...)
}

// empty deletes the matching entries of one family and counts those with DNAT to the
// allocation. Entries left after the last pass are not an error: the rules may not be
// removed yet, and a later Audit counts them.
func (f *conntrackFinder) empty(ctx context.Context, fam family) (*flows, error) {
	removed := &flows{family: fam, counts: make(map[flowKey]int)}
	for range maxPasses {
		matching, err := f.walk(ctx, fam, func(matching *flows) error {
			err := connections.DeleteMatching(ctx, fam.number(), matching.match)
			for key, n := range matching.counts {
				removed.counts[key] += n
			}
			return err
		})
		if err != nil || len(matching.counts) == 0 {
			return removed, err
		}
	}
	return removed, nil
}

// udpPorts returns the UDP host ports of the target and the addresses on which they are
// published.
func udpPorts(t Target) map[uint16][]netip.Addr {
	ports := make(map[uint16][]netip.Addr)
	for _, m := range t.Ports {
		if strings.EqualFold(m.Protocol, "udp") {
			host, _ := netip.ParseAddr(m.HostIP)
			port := uint16(m.HostPort)
			ports[port] = append(ports[port], host.Unmap())
		}
	}
	return ports
}

// localAddresses returns the host's addresses of one family. They are needed only for
// host ports; without any, it returns none.
func localAddresses(fam family, ports map[uint16][]netip.Addr) ([]netip.Prefix, error) {
	if len(ports) == 0 {
		return nil, nil
	}
	routes, err := netlink.RouteListFiltered(int(fam.number()),
		&netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var local []netip.Prefix
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		bits, _ := route.Dst.Mask.Size()
		addr, _ := netip.AddrFromSlice(route.Dst.IP)
		local = append(local, netip.PrefixFrom(addr.Unmap(), bits))
	}
	return local, nil
}

// number returns the kernel's number of the family.
func (f family) number() uint8 {
	if f == ipv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
