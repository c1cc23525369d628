package iptables

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// rule is a rule of nf_tables.
type rule struct {
	chain  string
	handle uint64
	jump   string // the chain it jumps to
	// text is everything that the rule does, in the kernel's own encoding. The
	// handle alone does not identify a rule: in a table that was deleted and made
	// again, the handles start from the first number again.
	text string
}

// question appends a request for rules of a chain.
func question(r *sock.Requests, f Family, chain string, flags uint16) {
	r.BeginNetfilter("", unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, flags, byte(f))
	r.CString(unix.NFTA_RULE_TABLE, filterTable)
	r.CString(unix.NFTA_RULE_CHAIN, chain)
}

// parseRule reads a rule from a message of the kernel.
func parseRule(data []byte) (r rule) {
	var text strings.Builder
	sock.EachNetfilterAttribute(data, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_RULE_CHAIN:
			r.chain = sock.String(value)
		case unix.NFTA_RULE_HANDLE:
			r.handle = sock.Uint64BE(value)
		case unix.NFTA_RULE_EXPRESSIONS:
			sock.EachAttribute(value, func(_ uint16, value []byte) {
				r.addExpression(value, &text)
			})
		}
	})
	r.text = text.String()
	return r
}

// addExpression adds an expression to the text of the rule, but not the values of a
// counter.
func (r *rule) addExpression(expression []byte, text *strings.Builder) {
	name := ""
	sock.EachAttribute(expression, func(kind uint16, value []byte) {
		switch {
		case kind == unix.NFTA_EXPR_NAME:
			name = sock.String(value)
			text.WriteString(name + "\n")
		case kind != unix.NFTA_EXPR_DATA || name == "counter":
		default:
			text.Write(value)
			if name == "immediate" {
				r.readImmediate(value)
			}
		}
	})
}

// readImmediate finds the chain to which an immediate verdict jumps.
func (r *rule) readImmediate(immediate []byte) {
	sock.EachAttribute(immediate, func(kind uint16, value []byte) {
		if kind != unix.NFTA_IMMEDIATE_DATA {
			return
		}
		sock.EachAttribute(value, func(kind uint16, value []byte) {
			if kind == unix.NFTA_DATA_VERDICT {
				r.readVerdict(value)
			}
		})
	})
}

func (r *rule) readVerdict(verdict []byte) {
	sock.EachAttribute(verdict, func(kind uint16, value []byte) {
		if kind == unix.NFTA_VERDICT_CHAIN {
			r.jump = sock.String(value)
		}
	})
}
