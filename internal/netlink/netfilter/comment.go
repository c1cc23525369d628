package netfilter

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// matchComment is the name of the iptables match that contains a comment and matches
// every packet.
const matchComment = "comment"

// HiddenComments returns the comments of all rules of the table, unless the table's
// command lists all of them.
func (t Table) HiddenComments(ctx context.Context) ([]string, error) {
	legacy, err := t.legacyTable()
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", t, err)
	}
	if legacy == nil {
		return nil, nil // see mayBeBoth
	}
	made, err := layouts[t.IPv6].comments(legacy.entries)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", t, err)
	}
	var comments []string
	err = Look(ctx, func(conn *nftables.Conn) (err error) {
		comments, err = t.comments(conn)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of table %s: %w", t, err)
	}
	return append(comments, made...), nil
}

// comments returns the comments of the rules that iptables-nft made.
func (t Table) comments(conn *nftables.Conn) ([]string, error) {
	chains, err := conn.ListChainsOfTableFamily(t.family())
	if err != nil {
		return nil, err
	}
	var comments []string
	for _, chain := range chains {
		if chain.Table.Name != t.Name {
			continue
		}
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			return nil, err
		}
		for _, rule := range rules {
			if comment := commentOf(rule); comment != "" {
				comments = append(comments, comment)
			}
		}
	}
	return comments, nil
}

// commentOf returns the comment of a rule, whether iptables or nft attached it.
func commentOf(rule *nftables.Rule) string {
	for _, e := range rule.Exprs {
		match, _ := e.(*expr.Match)
		if match == nil || match.Name != matchComment {
			continue
		}
		switch info := match.Info.(type) {
		case *xt.Comment:
			return text([]byte(*info))
		case *xt.Unknown:
			return text(*info)
		}
	}
	return Comment(rule.UserData)
}

// Comment returns the comment in a rule's user data, which consists of records of type,
// length and value.
func Comment(data []byte) string {
	const typeComment = 0
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		kind, value := data[0], data[2:2+int(data[1])]
		if kind == typeComment {
			return strings.TrimSuffix(string(value), "\x00")
		}
		data = data[2+len(value):]
	}
	return ""
}
