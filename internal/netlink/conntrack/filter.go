package conntrack

import (
	"context"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaMark       = 8
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoDstPort = 3

	ctaProtoICMPType   = 5
	ctaProtoICMPv6Type = 8

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2

	flagSource      = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC
	flagDestination = 1 << 1 // CTA_FILTER_F_CTA_IP_DST
	flagProtocol    = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM
	flagPort        = 1 << 5 // CTA_FILTER_F_CTA_PROTO_DST_PORT
)

// filter selects entries. Fields that are zero are not compared.
type filter struct {
	family              uint8
	protocol            uint8
	source, destination netip.Addr // of the first packet
	port                uint16     // its destination port
	answers             netip.Addr // the source of the answers
}

// exact reports whether the kernel selects exactly the entries that match the filter:
// see the package documentation for its defects. It would select all entries with a
// filter without addresses and protocol.
func (f filter) exact() bool {
	addressed := f.source.IsValid() || f.destination.IsValid() || f.answers.IsValid()
	switch {
	case f.family != unix.AF_INET && addressed:
		return false
	case f.port != 0 && f.protocol != unix.IPPROTO_TCP && f.protocol != unix.IPPROTO_UDP:
		return false
	}
	return addressed || f.protocol != 0
}

// listing returns the part of the filter that the kernel may use for a list: fields
// that every kernel either applies correctly or ignores. The listed entries are
// compared with the whole filter afterwards.
func (f filter) listing() filter {
	return filter{family: f.family, protocol: f.protocol, port: f.port}
}

// put appends the filter as attributes. A filter that contains only a family has none.
func (f filter) put(r *sock.Requests) {
	orig := f.putTuple(r, ctaTupleOrig, f.source, f.destination, f.protocol)
	reply := f.putTuple(r, ctaTupleReply, f.answers, netip.Addr{}, 0)
	if orig|reply == 0 {
		return
	}
	flags := r.Nest(ctaFilter)
	r.Uint32(ctaFilterOrigFlags, orig)
	r.Uint32(ctaFilterReplyFlags, reply)
	r.End(flags)
}

// putTuple appends the attributes of one direction, and returns the flags of the fields
// that the kernel is to compare.
func (f filter) putTuple(r *sock.Requests, kind uint16, source, destination netip.Addr, protocol uint8) (flags uint32) {
	if !source.IsValid() && !destination.IsValid() && protocol == 0 {
		return 0
	}
	tuple := r.Nest(kind)
	ip := r.Nest(ctaTupleIP)
	if source.IsValid() {
		flags |= flagSource
		r.Attribute(ctaIPv4Src, source.AsSlice())
	}
	if destination.IsValid() {
		flags |= flagDestination
		r.Attribute(ctaIPv4Dst, destination.AsSlice())
	}
	r.End(ip)
	if protocol != 0 {
		flags |= flagProtocol
		proto := r.Nest(ctaTupleProto)
		r.Uint8(ctaProtoNum, protocol)
		if f.port != 0 {
			flags |= flagPort
			r.Attribute(ctaProtoDstPort, []byte{byte(f.port >> 8), byte(f.port)})
		}
		r.End(proto)
	}
	r.End(tuple)
	return flags
}

// deleteBy makes the kernel delete the entries that an exact filter matches. If the
// filter is not exact or the kernel cannot do that, deleteBy returns false and nothing
// was deleted. Such a kernel interprets the request as one to delete a single entry,
// and refuses it because a filter never contains everything that identifies an entry.
func (c *Conn) deleteBy(ctx context.Context, f filter) (bool, error) {
	if c.noFilter.Load() || !f.exact() {
		return false, nil
	}
	err := c.delete(ctx, f.family, f.put)
	if isUnsupported(err) {
		c.noFilter.Store(true)
		return false, nil
	}
	return err == nil, err
}
