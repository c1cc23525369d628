// Package nft changes rules with the program of that name, for what has to be laid
// out as the reference plugins lay it, and lists them without it. allocnet's own
// tables are package ruleset's, which needs no program.
package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// Table is one table. It is safe for concurrent use.
type Table struct {
	// Family is "ip", "ip6" or "inet".
	Family, Name string
}

// families are the names of the families in the kernel's terms.
var families = map[string]nftables.TableFamily{
	"ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6, "inet": nftables.TableFamilyINet,
}

// Usable is nil if the program can be used on this host. errors.Is finds
// exec.ErrNotFound if it is not installed.
func (t *Table) Usable(ctx context.Context) error {
	_, err := t.run(ctx, "", "list", "tables")
	return err
}

// Rule is one that was listed.
type Rule struct {
	Chain   string
	Handle  uint64
	Comment string
	exprs   []expr.Any
}

// Names reports whether the rule compares something with an address, or leads to it.
func (r Rule) Names(addr netip.Addr) bool {
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

// Rules are those of a chain, in order; none if there is no such chain. They are read
// from the kernel, so the program need not be installed.
func (t *Table) Rules(ctx context.Context, chain string) (rules []Rule, err error) {
	table := &nftables.Table{Family: families[t.Family], Name: t.Name}
	err = netfilter.Look(ctx, func(conn *nftables.Conn) error {
		rules = nil
		listed, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		for _, r := range listed {
			rules = append(rules, Rule{Chain: chain, Handle: r.Handle, Comment: netfilter.Comment(r.UserData), exprs: r.Exprs})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list chain %s of table %s %s: %w", chain, t.Family, t.Name, err)
	}
	return rules, nil
}

// Run makes all changes of a script, or none.
func (t *Table) Run(ctx context.Context, s *Script) error {
	if s.err != nil {
		return s.err
	}
	_, err := t.run(ctx, s.text.String(), "-f", "-")
	return err
}

// pipeTime is how long a killed program's pipes are waited for.
const pipeTime = time.Second

func (t *Table) run(ctx context.Context, input string, args ...string) ([]byte, error) {
	path, err := exec.LookPath("nft")
	if err != nil {
		return nil, fmt.Errorf("find nft, which the backend nftables needs: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = strings.NewReader(input), &stdout, &stderr, pipeTime
	if err := cmd.Run(); err != nil {
		return nil, &runError{command: cmd.String(), said: strings.TrimSpace(stderr.String()), err: errors.Join(ctx.Err(), err)}
	}
	return stdout.Bytes(), nil
}

type runError struct {
	command, said string
	err           error
}

func (e *runError) Error() string { return fmt.Sprintf("run %s: %v: %s", e.command, e.err, e.said) }
func (e *runError) Unwrap() error { return e.err }

// Script is changes of a table's content, for Run.
type Script struct {
	table *Table
	text  strings.Builder
	err   error
}

// Script returns an empty one.
func (t *Table) Script() *Script { return &Script{table: t} }

// Empty reports whether there is nothing to do.
func (s *Script) Empty() bool { return s.text.Len() == 0 && s.err == nil }

func (s *Script) add(command, kind, rest string) {
	fmt.Fprintf(&s.text, "%s %s %s %s %s\n", command, kind, s.table.Family, s.table.Name, rest)
}

// Make makes the table, unless it is there.
func (s *Script) Make(comment string) {
	s.add("add", "table", "{ "+s.comment(comment)+" ; }")
}

// Chain makes a chain, unless it is there.
func (s *Script) Chain(name, comment string) {
	if comment != "" {
		name += " { " + s.comment(comment) + " ; }"
	}
	s.add("add", "chain", name)
}

// NAT makes a chain of a hook of the type nat, unless it is there.
func (s *Script) NAT(name, hook string, priority int) {
	s.add("add", "chain", fmt.Sprintf("%s { type nat hook %s priority %d ; }", name, hook, priority))
}

// Flush deletes a chain's rules.
func (s *Script) Flush(chain string) { s.add("flush", "chain", chain) }

// Rule adds one at the end of a chain.
func (s *Script) Rule(chain, comment string, words ...string) {
	if comment != "" {
		words = append(words[:len(words):len(words)], s.comment(comment))
	}
	s.add("add", "rule", chain+" "+strings.Join(words, " "))
}

// Delete deletes one that was listed.
func (s *Script) Delete(r Rule) {
	s.add("delete", "rule", r.Chain+" handle "+strconv.FormatUint(r.Handle, 10))
}

// comment quotes one, of which nft has no way to escape anything.
func (s *Script) comment(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return r == '"' || r < ' ' }) {
		s.err = fmt.Errorf("nftables: %q cannot be a comment", text)
	}
	return `comment "` + text + `"`
}
