package netfilter

import (
	"context"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Unknown is an expression of a rule that Rules does not read.
type Unknown struct {
	expr.Any
	Name string
}

// Rules lists the rules of a chain. It differs from the method GetRules of a Conn, which
// leaves out expressions that it does not know, and fails for a direction of conntrack: here
// these are an *Unknown, or read. Call it within Look.
func Rules(ctx context.Context, c *nftables.Chain) (rules []*nftables.Rule, err error) {
	err = sock.Build(func(r *sock.Requests) {
		begin(r, "rules", unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, byte(c.Table.Family))
		r.CString(unix.NFTA_RULE_TABLE, c.Table.Name)
		r.CString(unix.NFTA_RULE_CHAIN, c.Name)
	}, func(r *sock.Requests) error {
		return kernel.Dump(ctx, r, func(payload []byte) error {
			if rule, chain := readRule(byte(c.Table.Family), payload); chain == c.Name {
				rules = append(rules, rule)
			}
			return nil
		})
	})
	return rules, err
}

func readRule(family byte, payload []byte) (rule *nftables.Rule, chain string) {
	rule = &nftables.Rule{}
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_RULE_CHAIN:
			chain = sock.String(value)
		case unix.NFTA_RULE_HANDLE:
			rule.Handle = sock.Uint64BE(value)
		case unix.NFTA_RULE_USERDATA:
			rule.UserData = slices.Clone(value)
		case unix.NFTA_RULE_EXPRESSIONS:
			sock.EachAttribute(value, func(_ uint16, element []byte) {
				rule.Exprs = append(rule.Exprs, readExpression(family, element))
			})
		}
	})
	return rule, chain
}

// expressions are those that rules about the way of packets consist of.
var expressions = map[string]func() expr.Any{
	"bitwise":   func() expr.Any { return &expr.Bitwise{} },
	"cmp":       func() expr.Any { return &expr.Cmp{} },
	"counter":   func() expr.Any { return &expr.Counter{} },
	"ct":        func() expr.Any { return &expr.Ct{} },
	"immediate": func() expr.Any { return &expr.Verdict{} },
	"limit":     func() expr.Any { return &expr.Limit{} },
	"log":       func() expr.Any { return &expr.Log{} },
	"lookup":    func() expr.Any { return &expr.Lookup{} },
	"match":     func() expr.Any { return &expr.Match{} },
	"meta":      func() expr.Any { return &expr.Meta{} },
	"payload":   func() expr.Any { return &expr.Payload{} },
	"range":     func() expr.Any { return &expr.Range{} },
	"reject":    func() expr.Any { return &expr.Reject{} },
	"target":    func() expr.Any { return &expr.Target{} },
}

func readExpression(family byte, element []byte) expr.Any {
	var name string
	var data []byte
	sock.EachAttribute(element, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_EXPR_NAME:
			name = sock.String(value)
		case unix.NFTA_EXPR_DATA:
			data = value
		}
	})
	if name == "immediate" && !isVerdict(data) || expressions[name] == nil {
		return &Unknown{Name: name}
	}
	e := expressions[name]()
	err := expr.Unmarshal(family, data, e)
	if ct, ok := e.(*expr.Ct); ok { // the library takes the direction for a longer number
		err = nil
		sock.EachAttribute(data, func(kind uint16, value []byte) {
			if kind == unix.NFTA_CT_DIRECTION && len(value) > 0 {
				ct.Direction = uint32(value[0])
			}
		})
	}
	if err != nil {
		return &Unknown{Name: name}
	}
	return e
}

// isVerdict reports whether an immediate expression is a verdict, and not data.
func isVerdict(data []byte) (is bool) {
	sock.EachAttribute(data, func(kind uint16, value []byte) {
		if kind == unix.NFTA_IMMEDIATE_DREG {
			is = sock.Uint32BE(value) == unix.NFT_REG_VERDICT
		}
	})
	return is
}
