package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// entry contains the fields of an entry that are compared.
type entry struct {
	tuple          // of the first packet
	answers tuple  // of the first answer
	status  uint32 // IPS_*
	mark    uint32
	key     []byte // the attributes that identify the entry for its deletion
}

type tuple struct {
	protocol            uint8
	source, destination netip.Addr
	sourcePort, port    uint16 // port is that of the destination
	icmpType, icmpCode  uint8
	icmpID              uint16
}

// each calls a function with the entries that the kernel lists for a filter. These can
// be more than match the filter. An entry is valid only during the call.
func (c *Conn) each(ctx context.Context, f filter, use func(*entry)) error {
	return sock.Build(func(r *sock.Requests) {
		begin(r, getEntries, unix.NLM_F_DUMP, f.family)
		listing := f.listing()
		listing.put(r)
	}, func(r *sock.Requests) error {
		var e entry
		return c.sockets.Dump(ctx, r, func(payload []byte) error {
			e = entry{key: e.key[:0]}
			e.decode(sock.After(sock.NetfilterHeader, payload))
			if !e.source.IsValid() || !e.answers.source.IsValid() {
				return fmt.Errorf("read an entry: %w", unix.EBADMSG)
			}
			use(&e)
			return nil
		})
	})
}

// deleteEach deletes the entries that match. The filter, which matches them too, shortens a list.
func (c *Conn) deleteEach(ctx context.Context, f filter, match func(*entry) bool) error {
	var keys [][]byte
	err := c.deletable(ctx, f, func(e *entry) {
		if match(e) {
			keys = append(keys, slices.Clone(e.key))
		}
	})
	if isUnsupported(err) {
		// A kernel that cannot list entries cannot delete them either.
		return nil
	}
	errs := []error{err}
	for _, key := range keys {
		errs = append(errs, c.deleteEntry(ctx, f.family, key))
	}
	return errors.Join(errs...)
}

// deleteEntry deletes the entry with a key, if it still exists. The kernel returns
// EBUSY while a flow table forwards the packets of the entry, until the interface is
// removed; deleteEntry tries again for a limited time.
func (c *Conn) deleteEntry(ctx context.Context, family uint8, key []byte) error {
	err := retry.Do(ctx, func() error {
		return c.delete(ctx, family, func(r *sock.Requests) { r.Append(key...) })
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (e *entry) decode(data []byte) {
	sock.EachAttribute(data, func(kind uint16, value []byte) {
		switch kind {
		case ctaTupleOrig:
			e.tuple.decode(value)
			e.addKey(unix.NLA_F_NESTED|kind, value)
		case ctaTupleReply:
			e.answers.decode(value)
		case ctaStatus:
			e.status = sock.Uint32BE(value)
		case ctaMark:
			e.mark = sock.Uint32BE(value)
		case ctaZone, ctaID:
			e.addKey(kind, value)
		}
	})
}

// addKey adds an attribute to the key of the entry.
func (e *entry) addKey(kind uint16, value []byte) {
	e.key = binary.NativeEndian.AppendUint16(e.key, uint16(unix.SizeofNlAttr+len(value)))
	e.key = append(binary.NativeEndian.AppendUint16(e.key, kind), value...)
	e.key = append(e.key, make([]byte, sock.Align(len(value))-len(value))...)
}

func (t *tuple) decode(data []byte) {
	sock.EachAttribute(data, func(kind uint16, value []byte) {
		switch kind {
		case ctaTupleIP:
			t.decodeAddresses(value)
		case ctaTupleProto:
			t.decodePorts(value)
		}
	})
}

func (t *tuple) decodeAddresses(data []byte) {
	sock.EachAttribute(data, func(kind uint16, value []byte) {
		addr, _ := netip.AddrFromSlice(value)
		switch kind {
		case ctaIPv4Src, ctaIPv6Src:
			t.source = addr
		case ctaIPv4Dst, ctaIPv6Dst:
			t.destination = addr
		}
	})
}

func (t *tuple) decodePorts(data []byte) {
	sock.EachAttribute(data, func(kind uint16, value []byte) {
		switch {
		case kind == ctaProtoNum && len(value) == 1:
			t.protocol = value[0]
		case kind == ctaProtoSrcPort && len(value) == 2:
			t.sourcePort = binary.BigEndian.Uint16(value)
		case kind == ctaProtoDstPort && len(value) == 2:
			t.port = binary.BigEndian.Uint16(value)
		case (kind == ctaProtoICMPType || kind == ctaProtoICMPv6Type) && len(value) == 1:
			t.icmpType = value[0]
		}
	})
}
