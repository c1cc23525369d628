package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Connection is a tracked connection with its addresses and ports in both directions.
// They differ where the kernel translates addresses.
type Connection struct {
	Protocol            uint8 // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	Source, Destination netip.AddrPort
	// Answers go from AnswersFrom to AnswersTo.
	AnswersFrom, AnswersTo netip.AddrPort
}

// ctaProtoSrcPort is an attribute of linux/netfilter/nfnetlink_conntrack.h.
const ctaProtoSrcPort = 2

// Find looks up the connection that a first packet with these addresses made; nil if it
// is not tracked.
func (c *Conn) Find(ctx context.Context, protocol uint8, source, destination netip.AddrPort) (*Connection, error) {
	found := &Connection{Protocol: protocol, Source: source, Destination: destination}
	err := sock.Build(func(r *sock.Requests) {
		begin(r, getEntries, 0, family(source.Addr()))
		found.put(r)
	}, func(r *sock.Requests) error {
		var failed error
		err := c.sockets.Exchange(ctx, r, func(_ int, payload []byte, err error) {
			if failed = err; err == nil {
				found.decode(payload)
			}
		})
		return errors.Join(err, failed)
	})
	switch {
	case errors.Is(err, unix.ENOENT), isUnsupported(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up tracked connection: %w", err)
	}
	return found, nil
}

// Delete deletes the connection that Find finds, if there is one.
func (c *Conn) Delete(ctx context.Context, protocol uint8, source, destination netip.AddrPort) error {
	one := &Connection{Protocol: protocol, Source: source, Destination: destination}
	err := c.delete(ctx, family(source.Addr()), one.put)
	if err == nil || errors.Is(err, unix.ENOENT) || isUnsupported(err) {
		return nil
	}
	return fmt.Errorf("delete tracked connection: %w", err)
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// put appends the addresses of the first packet.
func (n *Connection) put(r *sock.Requests) {
	source, destination := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if !n.Source.Addr().Is4() {
		source, destination = ctaIPv6Src, ctaIPv6Dst
	}
	tuple := r.Nest(ctaTupleOrig)
	ip := r.Nest(ctaTupleIP)
	r.Attribute(source, n.Source.Addr().AsSlice())
	r.Attribute(destination, n.Destination.Addr().AsSlice())
	r.End(ip)
	proto := r.Nest(ctaTupleProto)
	r.Uint8(ctaProtoNum, n.Protocol)
	r.Attribute(ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, n.Source.Port()))
	r.Attribute(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, n.Destination.Port()))
	r.End(proto)
	r.End(tuple)
}

// decode reads the addresses of the answers.
func (n *Connection) decode(payload []byte) {
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		if kind != ctaTupleReply {
			return
		}
		var answers tuple
		answers.decode(value)
		n.AnswersFrom = netip.AddrPortFrom(answers.source, answers.sourcePort)
		n.AnswersTo = netip.AddrPortFrom(answers.destination, answers.port)
	})
}
