package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
)

// entry is what of an entry is compared.
type entry struct {
	tuple          // of the first packet
	answers tuple  // of the first answer
	key     []byte // the attributes that this very entry is deleted by
}

type tuple struct {
	protocol            uint8
	source, destination netip.Addr
	port                uint16 // destination port
}

// header is the length of struct nfgenmsg.
const header = 4

// each calls a function with the entries that the kernel lists for a filter,
// which may be more than match.
func (c *Conn) each(ctx context.Context, f filter, use func(*entry)) error {
	attributes, err := f.listing().encode()
	if err != nil {
		return err
	}
	messages, err := c.execute(ctx, getEntries, netlink.Dump, f.family, attributes)
	if err != nil {
		return err
	}
	for _, m := range messages {
		var e entry
		if err := e.decode(m.Data); err != nil {
			return fmt.Errorf("read an entry: %w", err)
		}
		use(&e)
	}
	return nil
}

// deleteEach lists entries and deletes those that match.
func (c *Conn) deleteEach(ctx context.Context, f filter, match func(*entry) bool) error {
	var keys [][]byte
	err := c.each(ctx, f, func(e *entry) {
		if match(e) {
			keys = append(keys, e.key)
		}
	})
	if isUnsupported(err) {
		// Entries that nobody can list, nobody can delete.
		return nil
	}
	errs := []error{err}
	for _, key := range keys {
		errs = append(errs, c.deleteEntry(ctx, f.family, key))
	}
	return errors.Join(errs...)
}

// deleteEntry deletes the entry of a key, if there still is one. The kernel deletes none
// while a flow table forwards its packets, which ends with the interface: EBUSY until then.
func (c *Conn) deleteEntry(ctx context.Context, family uint8, key []byte) error {
	err := retry.Do(ctx, func() error {
		_, err := c.execute(ctx, deleteEntries, netlink.Acknowledge, family, key)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (e *entry) decode(data []byte) error {
	if len(data) < header {
		return errors.New("message is too short")
	}
	ad, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return err
	}
	key := netlink.NewAttributeEncoder()
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleOrig:
			key.Bytes(unix.NLA_F_NESTED|ctaTupleOrig, ad.Bytes())
			ad.Nested(e.tuple.decode)
		case ctaTupleReply:
			ad.Nested(e.answers.decode)
		case ctaZone, ctaID:
			key.Bytes(ad.Type(), ad.Bytes())
		}
	}
	if err := ad.Err(); err != nil {
		return err
	}
	e.key, err = key.Encode()
	return err
}

func (t *tuple) decode(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleIP:
			ad.Nested(t.decodeAddresses)
		case ctaTupleProto:
			ad.Nested(t.decodePorts)
		}
	}
	return nil
}

func (t *tuple) decodeAddresses(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		addr, _ := netip.AddrFromSlice(ad.Bytes())
		switch ad.Type() {
		case ctaIPv4Src, ctaIPv6Src:
			t.source = addr
		case ctaIPv4Dst, ctaIPv6Dst:
			t.destination = addr
		}
	}
	return nil
}

func (t *tuple) decodePorts(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch b := ad.Bytes(); {
		case ad.Type() == ctaProtoNum && len(b) == 1:
			t.protocol = b[0]
		case ad.Type() == ctaProtoDstPort && len(b) == 2:
			t.port = binary.BigEndian.Uint16(b)
		}
	}
	return nil
}
