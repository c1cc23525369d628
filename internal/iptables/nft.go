package iptables

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// NFTable is a table with the layout of the reference plugins. Its rules are changed
// with the program nft, and listed without it. allocnet's own tables are those of
// package ruleset, which needs no program. NFTable is safe for concurrent use.
type NFTable struct {
	// Family is "ip", "ip6" or "inet".
	Family, Name string
}

// nftFamilies are the kernel's numbers of the families, by name.
var nftFamilies = map[string]nftables.TableFamily{
	"ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6, "inet": nftables.TableFamilyINet,
}

// Usable returns nil if the program nft can be used on this host. errors.Is finds
// exec.ErrNotFound if it is not installed.
func (t *NFTable) Usable(ctx context.Context) error {
	return t.run(ctx, "", "list", "tables")
}

// NFTRule is a listed rule of nftables.
type NFTRule struct {
	Chain   string
	Handle  uint64
	Comment string
	exprs   []expr.Any
}

// Names reports whether the rule contains an address, either to compare a field with it
// or to redirect to it.
func (r NFTRule) Names(addr netip.Addr) bool {
	return slices.ContainsFunc(r.exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Cmp:
			return bytes.Equal(e.Data, addr.AsSlice())
		case *expr.Immediate:
			return bytes.Equal(e.Data, addr.AsSlice())
		}
		return false
	})
}

// Rules returns the rules of a chain, in order; none if the chain does not exist. They
// are read from the kernel, so the program nft need not be installed.
func (t *NFTable) Rules(ctx context.Context, chain string) (rules []NFTRule, err error) {
	table := &nftables.Table{Family: nftFamilies[t.Family], Name: t.Name}
	err = netfilter.Look(ctx, func(conn *nftables.Conn) error {
		rules = nil
		listed, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		for _, r := range listed {
			rules = append(rules, NFTRule{Chain: chain, Handle: r.Handle, Comment: netfilter.Comment(r.UserData), exprs: r.Exprs})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list chain %s of table %s %s: %w", chain, t.Family, t.Name, err)
	}
	return rules, nil
}

// Run makes all changes of a script, or none.
func (t *NFTable) Run(ctx context.Context, s *NFTScript) error {
	if s.err != nil {
		return s.err
	}
	return t.run(ctx, s.text.String(), "-f", "-")
}

func (t *NFTable) run(ctx context.Context, input string, args ...string) error {
	path, err := exec.LookPath("nft")
	if err != nil {
		return fmt.Errorf("find nft, which the backend nftables needs: %w", err)
	}
	_, _, err = run(ctx, input, path, args...)
	return err
}

// NFTScript is a list of changes to a table's content, for Run.
type NFTScript struct {
	table *NFTable
	text  strings.Builder
	err   error
}

// Script returns an empty script for the table.
func (t *NFTable) Script() *NFTScript { return &NFTScript{table: t} }

// Empty reports whether the script contains no changes.
func (s *NFTScript) Empty() bool { return s.text.Len() == 0 && s.err == nil }

func (s *NFTScript) add(command, kind, rest string) {
	fmt.Fprintf(&s.text, "%s %s %s %s %s\n", command, kind, s.table.Family, s.table.Name, rest)
}

// Make makes the table, unless it exists.
func (s *NFTScript) Make(comment string) {
	s.add("add", "table", "{ "+s.comment(comment)+" ; }")
}

// Chain makes a chain, unless it exists.
func (s *NFTScript) Chain(name, comment string) {
	if comment != "" {
		name += " { " + s.comment(comment) + " ; }"
	}
	s.add("add", "chain", name)
}

// NAT makes a chain of type nat at a hook, unless it exists.
func (s *NFTScript) NAT(name, hook string, priority int) {
	s.add("add", "chain", fmt.Sprintf("%s { type nat hook %s priority %d ; }", name, hook, priority))
}

// Flush deletes the rules of a chain.
func (s *NFTScript) Flush(chain string) { s.add("flush", "chain", chain) }

// Rule adds a rule at the end of a chain.
func (s *NFTScript) Rule(chain, comment string, words ...string) {
	if comment != "" {
		words = append(words[:len(words):len(words)], s.comment(comment))
	}
	s.add("add", "rule", chain+" "+strings.Join(words, " "))
}

// Delete deletes a listed rule.
func (s *NFTScript) Delete(r NFTRule) {
	s.add("delete", "rule", r.Chain+" handle "+strconv.FormatUint(r.Handle, 10))
}

// comment quotes a comment. nft cannot escape characters, so not every text can be a
// comment.
func (s *NFTScript) comment(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return r == '"' || r < ' ' }) {
		s.err = fmt.Errorf("nftables: %q cannot be a comment", text)
	}
	return `comment "` + text + `"`
}
