package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// Address flags.
const (
	// NoDAD makes an address usable at once, without duplicate address detection.
	// Use it only for addresses that are known to be unique.
	NoDAD = unix.IFA_F_NODAD
	// NoPrefixRoute keeps the kernel from making the route to the address's
	// network.
	NoPrefixRoute = unix.IFA_F_NOPREFIXROUTE
)

// AddAddress adds an address to a link. flags are NoDAD, NoPrefixRoute or both.
func (b *Batch) AddAddress(index int, address *net.IPNet, flags int) {
	ip, family := address.IP.To4(), unix.AF_INET
	if ip == nil {
		ip, family = address.IP.To16(), unix.AF_INET6
	}
	ones, bits := address.Mask.Size()
	r := b.begin(fmt.Sprintf("add address %s", address), unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	putAddress(r, uint8(family), uint8(ones), index)
	r.Attribute(unix.IFA_LOCAL, ip)
	r.Attribute(unix.IFA_ADDRESS, ip)
	if family == unix.AF_INET && bits-ones > 1 {
		r.Attribute(unix.IFA_BROADCAST, broadcast(ip, address.Mask))
	}
	r.Uint32(unix.IFA_FLAGS, uint32(flags))
}

// DeleteAddress deletes an address of a link.
func (b *Batch) DeleteAddress(index int, address *net.IPNet) {
	ip, family := address.IP.To4(), unix.AF_INET
	if ip == nil {
		ip, family = address.IP.To16(), unix.AF_INET6
	}
	ones, _ := address.Mask.Size()
	r := b.begin(fmt.Sprintf("delete address %s", address), unix.RTM_DELADDR, 0)
	putAddress(r, uint8(family), uint8(ones), index)
	r.Attribute(unix.IFA_LOCAL, ip)
	r.Attribute(unix.IFA_ADDRESS, ip)
}

// AddSharedAddress adds an IPv4 address that many links share. For each link the kernel
// makes a local route to the address; to add one, it walks all such routes with the
// same metric. Therefore AddSharedAddress replaces the route by one with a metric of
// its own. That metric is lower than those of older links, so the kernel adds the
// route, and finds it, before theirs. In all other respects the route equals the
// kernel's, which removes it together with the address or the link.
func (b *Batch) AddSharedAddress(index int, ip net.IP) {
	b.AddAddress(index, &net.IPNet{IP: ip.To4(), Mask: net.CIDRMask(32, 32)}, 0)
	b.sortLocalRoute(index, ip)
}

// sortLocalRoute replaces the local route to a shared address: see AddSharedAddress.
func (b *Batch) sortLocalRoute(index int, ip net.IP) {
	label := fmt.Sprintf("sort local route to %s", ip)
	putLocalRoute(b.begin(label, unix.RTM_DELROUTE, 0), index, ip)
	r := b.begin(label, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	putLocalRoute(r, index, ip)
	r.Uint32(unix.RTA_PRIORITY, newestFirst(index))
}

// putAddress appends the header of a message about addresses (struct ifaddrmsg).
func putAddress(r *sock.Requests, family, prefix uint8, index int) {
	m := [unix.SizeofIfAddrmsg]byte{family, prefix}
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	r.Append(m[:]...)
}

// putLocalRoute appends the header and the attributes of the local route that the
// kernel makes for an address.
func putLocalRoute(r *sock.Requests, index int, ip net.IP) {
	putRoute(r, &unix.RtMsg{
		Family: unix.AF_INET, Dst_len: 32, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Table: unix.RT_TABLE_LOCAL, Protocol: unix.RTPROT_KERNEL,
	})
	r.Attribute(unix.RTA_DST, ip.To4())
	r.Attribute(unix.RTA_PREFSRC, ip.To4())
	r.Uint32(unix.RTA_OIF, uint32(index))
}

// newestFirst returns a metric that is lower for newer links, which have higher
// indexes. It is computed from twice the index, because the kernel hashes routes by the
// exclusive or of index and metric, which would otherwise be the same for all links.
func newestFirst(index int) uint32 { return ^uint32(0) - 2*uint32(index) }

func broadcast(ip net.IP, mask net.IPMask) net.IP {
	last := make(net.IP, len(ip))
	for i := range ip {
		last[i] = ip[i] | ^mask[len(mask)-len(ip)+i]
	}
	return last
}

// AddAddress adds an address to a link of the host: see Batch.AddAddress.
func (h *Host) AddAddress(index int, address *net.IPNet, flags int) error {
	var b Batch
	b.AddAddress(index, address, flags)
	return h.Apply(&b)
}

const (
	// receptionTime bounds the wait for a kernel worker, which needs the lock that every change of links holds: with 8 programs
	// that change links at the same time, more than 10 s were seen.
	receptionTime      = 30 * time.Second
	firstReceptionPoll = 10 * time.Microsecond
	// mostBlocked is the longest time for which pause blocks its thread.
	mostBlocked       = 500 * time.Microsecond
	lastReceptionPoll = 5 * time.Millisecond
	// lookupsPerList is the number of lookups of a local route after which awaitReception lists the routes.
	lookupsPerList = 16
)

// AwaitReception waits until the kernel accepts packets for the IPv6 addresses of a
// link; it ignores IPv4 addresses. RTM_NEWADDR returns earlier: a kernel worker
// joins the solicited-node multicast group (RFC 4291, section 2.7.1) and then adds the
// local route, also for addresses with NoDAD. Neighbour solicitations that arrive
// before that are lost, and the sender repeats them only after one second.
func (s *Sandbox) AwaitReception(ctx context.Context, index int, ips ...net.IP) error {
	return awaitReception(ctx, s.conn, s.conn, index, ips)
}

// AwaitReception is Sandbox.AwaitReception for a link of the host.
func (h *Host) AwaitReception(ctx context.Context, index int, ips ...net.IP) error {
	return awaitReception(ctx, &h.conns, &h.strict, index, ips)
}

// awaitReception looks up the local routes. A VRF or policy rules of the host may hide them from a lookup, or
// the worker may be late: it needs the lock that every change of links holds. So while a lookup finds
// no route, awaitReception also lists the routes now and then, which takes longer.
func awaitReception(ctx context.Context, lookups, lists sock.Exchanger, index int, ips []net.IP) error {
	ctx, cancel := context.WithTimeout(ctx, receptionTime)
	defer cancel()
	poll := firstReceptionPoll
	for missed := 0; len(ips) > 0; {
		received, err := receives(lookups, index, ips[0])
		if err == nil && !received {
			if missed++; missed%lookupsPerList == 0 {
				received, err = hasLocalRoute(lists, index, ips[0])
			}
		}
		if err != nil {
			return fmt.Errorf("look up the local route to %s: %w", ips[0], err)
		}
		if received {
			ips = ips[1:]
			continue
		}
		if err := pause(ctx, poll); err != nil {
			return fmt.Errorf("wait until the kernel accepts packets for %s: %w", ips[0], err)
		}
		poll = min(2*poll, lastReceptionPoll)
	}
	return nil
}

// hasLocalRoute reports whether any table has the local route to an IPv6 address over a link.
func hasLocalRoute(e sock.Exchanger, index int, ip net.IP) (found bool, err error) {
	err = retry.Do(context.Background(), func() error {
		return dump(e, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETROUTE, unix.NLM_F_DUMP)
			putRoute(r, &unix.RtMsg{Family: unix.AF_INET6, Type: unix.RTN_LOCAL})
			r.Uint32(unix.RTA_OIF, uint32(index))
		}, func(payload []byte) error {
			found = found || isLocal(payload, index, ip)
			return nil
		})
	})
	return found, err
}

// isLocal reports whether a message is about the local route to an IPv6 address over a link.
func isLocal(payload []byte, index int, ip net.IP) bool {
	if len(payload) < unix.SizeofRtMsg || payload[7] != unix.RTN_LOCAL { // rtm_type
		return false
	}
	to, over := false, false
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			to = ip.Equal(value)
		case unix.RTA_OIF:
			over = len(value) == 4 && sock.Uint32(value) == uint32(index)
		}
	})
	return to && over
}

// pause waits for a time or until the context ends. For a short time it blocks the thread:
// Go's timers wait in milliseconds if no goroutine can run, which is longer than most of
// an ADD. A thread that sleeps also leaves its processor to the kernel worker that the
// caller waits for.
func pause(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d <= mostBlocked {
		t := unix.NsecToTimespec(d.Nanoseconds())
		_ = unix.Nanosleep(&t, nil) // a signal may end it early
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// receives reports whether the kernel has the local route to an address over a link.
// For IPv4 addresses it always returns true.
func receives(e sock.Exchanger, index int, ip net.IP) (bool, error) {
	if ip.To4() != nil {
		return true, nil
	}
	local := false
	err := get(e, func(r *sock.Requests) {
		r.Begin("", unix.RTM_GETROUTE, 0)
		putRoute(r, &unix.RtMsg{Family: unix.AF_INET6, Dst_len: 128, Flags: unix.RTM_F_FIB_MATCH})
		r.Attribute(unix.RTA_DST, ip.To16())
		r.Uint32(unix.RTA_OIF, uint32(index))
	}, func(answer []byte) { local = isLocal(answer, index, ip) })
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES} { // EACCES: a rule prohibits it
		if errors.Is(err, none) {
			return false, nil
		}
	}
	return local, err
}

// Addresses returns the addresses of a link of the sandbox, of both families.
func (s *Sandbox) Addresses(index int) ([]netlink.Addr, error) { return addresses(s.conn, 0, index) }

// Addresses returns the addresses of a link of the host, of both families; none if there is no such link. The cost does
// not grow with the number of links. It does not look up local routes: if links share an address, the kernel walks the
// routes of all of them to find that of one link.
func (h *Host) Addresses(index int) ([]netlink.Addr, error) {
	return addresses(&h.strict, index, index)
}

// addresses lists the addresses of a link. filter is its index if the kernel filters, else 0.
func addresses(e sock.Exchanger, filter, index int) ([]netlink.Addr, error) {
	list, err := retry.List(func() (list []netlink.Addr, err error) {
		err = dump(e, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETADDR, unix.NLM_F_DUMP)
			putAddress(r, unix.AF_UNSPEC, 0, filter)
		}, func(payload []byte) error {
			a, of, err := parseAddress(payload)
			if err == nil && of == index {
				list = append(list, a)
			}
			return err
		})
		return list, err
	})
	if err != nil && !IsNotFound(err) {
		return nil, fmt.Errorf("list addresses of link %d: %w", index, err)
	}
	return list, nil
}

// parseAddress reads an address and the index of its link from a message.
func parseAddress(payload []byte) (a netlink.Addr, index int, err error) {
	if len(payload) < unix.SizeofIfAddrmsg {
		return a, 0, os.NewSyscallError("read an address", unix.EBADMSG)
	}
	prefix, flags, scope := payload[1], payload[2], payload[3] // struct ifaddrmsg
	a.IPNet, a.Flags, a.Scope = &net.IPNet{}, int(flags), int(scope)
	sock.EachAttribute(payload[unix.SizeofIfAddrmsg:], func(kind uint16, value []byte) {
		switch {
		case kind == unix.IFA_ADDRESS && a.IP == nil, kind == unix.IFA_LOCAL: // with a peer, IFA_ADDRESS is the peer's
			a.IP = slices.Clone(value)
		case kind == unix.IFA_FLAGS && len(value) == 4:
			a.Flags = int(sock.Uint32(value))
		}
	})
	a.Mask = net.CIDRMask(int(prefix), 8*len(a.IP))
	return a, indexOf(payload), nil
}
