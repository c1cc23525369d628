package accept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// rule is one of nftables.
type rule struct {
	chain  string
	handle uint64
	jump   string // the chain it jumps to
	// text is all that the rule does, in the kernel's own encoding. A table that
	// was deleted and made again begins with the first handle, so a handle alone
	// says nothing.
	text string
}

// question asks for one rule of a chain by its handle, or for all.
func question(f Family, chain string, handle *uint64) []byte {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.String(unix.NFTA_RULE_TABLE, table)
	e.String(unix.NFTA_RULE_CHAIN, chain)
	flags := netlink.Request
	if handle != nil {
		e.Uint64(unix.NFTA_RULE_HANDLE, *handle)
	} else {
		flags |= netlink.Dump
	}
	data, _ := e.Encode() // cannot fail on numbers and short strings
	data = append([]byte{byte(f), unix.NFNETLINK_V0, 0, 0}, data...)
	message, _ := netlink.Message{
		Header: netlink.Header{
			Length: uint32(unix.NLMSG_HDRLEN + len(data)),
			Type:   unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE,
			Flags:  flags,
		},
		Data: data,
	}.MarshalBinary() // all attributes are aligned
	return message
}

// parseRule reads a message of the kernel.
func parseRule(data []byte) (rule, error) {
	const header = 4 // struct nfgenmsg
	if len(data) < header {
		return rule{}, errors.New("read rule: message is too short")
	}
	d, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return rule{}, fmt.Errorf("read rule: %w", err)
	}
	d.ByteOrder = binary.BigEndian
	var r rule
	var text strings.Builder
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = d.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = d.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			d.Nested(func(list *netlink.AttributeDecoder) error { return r.addExpressions(list, &text) })
		}
	}
	r.text = text.String()
	return r, d.Err()
}

// addExpressions takes what a rule does into its text, all but what it counted.
func (r *rule) addExpressions(list *netlink.AttributeDecoder, text *strings.Builder) error {
	for list.Next() {
		list.Nested(func(d *netlink.AttributeDecoder) error {
			name := ""
			for d.Next() {
				switch {
				case d.Type() == unix.NFTA_EXPR_NAME:
					name = d.String()
					text.WriteString(name + "\n")
				case d.Type() != unix.NFTA_EXPR_DATA || name == "counter":
				default:
					text.Write(d.Bytes())
					if name == "immediate" {
						d.Nested(r.readImmediate)
					}
				}
			}
			return nil
		})
	}
	return nil
}

// readImmediate finds the chain to which an immediate verdict jumps.
func (r *rule) readImmediate(d *netlink.AttributeDecoder) error {
	for d.Next() {
		if d.Type() != unix.NFTA_IMMEDIATE_DATA {
			continue
		}
		d.Nested(func(data *netlink.AttributeDecoder) error {
			for data.Next() {
				if data.Type() == unix.NFTA_DATA_VERDICT {
					data.Nested(r.readVerdict)
				}
			}
			return nil
		})
	}
	return nil
}

func (r *rule) readVerdict(d *netlink.AttributeDecoder) error {
	for d.Next() {
		if d.Type() == unix.NFTA_VERDICT_CHAIN {
			r.jump = d.String()
		}
	}
	return nil
}
