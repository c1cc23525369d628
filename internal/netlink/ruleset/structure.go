package ruleset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// tableComment is the comment of the tables in nft's listings.
const tableComment = "made by allocnet, which repairs it"

// state is the existing structure of a table.
type state struct {
	exists bool
	flags  uint32
	chains map[string]hook
	rules  map[string][]string // the comments of the rules, by chain
}

func (s *state) has(chain string) bool {
	_, ok := s.chains[chain]
	return ok
}

// ensureTable makes a table, or completes it. If several processes do so at the same
// time, one makes the table and the others find it.
func (r *Ruleset) ensureTable(ctx context.Context, t *table) error {
	return r.aroundPorts(ctx, t == ports, func() error { return r.makeTable(ctx, t) })
}

func (r *Ruleset) makeTable(ctx context.Context, t *table) error {
	if err := r.reservePorts(ctx, t); err != nil {
		return err
	}
	err := r.socket.Transaction(ctx, func(b *sock.Requests) { t.build(b, unix.NLM_F_EXCL, nil) })
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	is, err := r.inspect(ctx, t)
	if err != nil {
		return err
	}
	if len(t.problems(is)) > 0 {
		return r.rebuild(ctx, t)
	}
	// A set that no rule uses can be missing if an older version made the table.
	return r.socket.Transaction(ctx, func(b *sock.Requests) { t.putSets(b, 0) })
}

// reservePorts makes the table of the guard of bridge ports before one of policies, without content:
// so it costs no packet anything. A flush of the ruleset removes the hooks of one table after the
// other, in the order in which they were made (nft_flush). If the policies were first, the guard would
// let frames pass to which they no longer apply; without the guard, its held table drops them. A
// kernel without nftables of family bridge has no guarded ports.
func (r *Ruleset) reservePorts(ctx context.Context, before ...*table) error {
	if !slices.ContainsFunc(before, func(t *table) bool { return t.policy != nil }) {
		return nil
	}
	err := r.socket.Transaction(ctx, func(b *sock.Requests) { ports.put(b, 0) })
	if netfilter.IsUnsupported(err) {
		return nil
	}
	return err
}

// isReserved reports whether a table is as reservePorts makes it.
func (t *table) isReserved(is *state) bool { return t == ports && is.exists && len(is.chains) == 0 }

// Repair makes the chains and rules of the existing tables again if they are not as
// they should be, each table in one transaction. It keeps the sets with their elements.
// Missing tables are made by the next Add or Guard.
func (r *Ruleset) Repair(ctx context.Context) error {
	var errs []error
	for _, t := range append([]*table{guards[IPv4].table, guards[IPv6].table}, every...) {
		is, err := r.inspect(ctx, t)
		if err == nil && len(t.problems(is)) > 0 && !t.isReserved(is) {
			err = r.rebuild(ctx, t)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("repair %s: %w", t.label, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Ruleset) rebuild(ctx context.Context, t *table) error {
	var err error
	for range attempts {
		var is *state
		if is, err = r.inspect(ctx, t); err != nil || !is.exists {
			return err
		}
		if is.flags != 0 {
			// Chains cannot be added to a dormant table in the transaction
			// that activates it.
			if err := r.socket.Transaction(ctx, func(b *sock.Requests) { t.put(b, 0) }); err != nil {
				return err
			}
		}
		err = r.socket.Transaction(ctx, func(b *sock.Requests) { t.build(b, 0, is) })
		if err == nil {
			r.madeAgain(ctx, t)
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return err
}

// put appends the message that makes the table.
func (t *table) put(b *sock.Requests, flags uint16) {
	const userData = 6 // NFTA_TABLE_USERDATA
	t.begin(b, t.label, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|flags)
	b.CString(unix.NFTA_TABLE_NAME, t.name)
	b.Uint32BE(unix.NFTA_TABLE_FLAGS, t.flags)
	putComment(b, userData, tableComment)
}

// remove appends the message that removes the table with its content.
func (t *table) remove(b *sock.Requests) {
	t.begin(b, t.label, unix.NFT_MSG_DELTABLE, 0)
	b.CString(unix.NFTA_TABLE_NAME, t.name)
}

// build appends the messages that make the table. Given the state of an existing table,
// it deletes and makes again all rules, and the chains with another hook. The kernel refuses it
// with EEXIST if another process has made a missing chain since, with its rules.
func (t *table) build(b *sock.Requests, flags uint16, is *state) {
	t.putSets(b, flags)
	chains := t.chains()
	if is != nil {
		t.clear(b, chains, is)
	}
	for _, c := range chains {
		var exclusive uint16
		if is != nil && !is.has(c.name) {
			exclusive = unix.NLM_F_EXCL
		}
		c.put(b, t, exclusive)
	}
	for _, c := range chains {
		c.putRules(b, t)
	}
}

// putRules appends the messages that make the rules of a chain.
func (c *chain) putRules(b *sock.Requests, t *table) {
	for _, one := range c.rules {
		t.begin(b, c.label, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
		b.CString(unix.NFTA_RULE_TABLE, t.name)
		b.CString(unix.NFTA_RULE_CHAIN, c.name)
		b.Attribute(unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, one.exprs)
		putComment(b, unix.NFTA_RULE_USERDATA, one.comment)
	}
}

// putSets appends the messages that make the table and its sets.
func (t *table) putSets(b *sock.Requests, flags uint16) {
	t.put(b, flags)
	for i, s := range t.sets {
		s.put(b, uint32(i+1))
	}
	for _, s := range t.sets {
		putElementsWith(b, s.constant, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	}
}

func (t *table) clear(b *sock.Requests, chains []chain, is *state) {
	for _, c := range chains {
		if _, ok := is.chains[c.name]; ok {
			t.begin(b, c.label, unix.NFT_MSG_DELRULE, 0)
			b.CString(unix.NFTA_RULE_TABLE, t.name)
			b.CString(unix.NFTA_RULE_CHAIN, c.name)
		}
	}
	for _, c := range chains {
		if h, ok := is.chains[c.name]; ok && h != c.hook {
			c.remove(b, t)
		}
	}
}

// remove appends the message that removes a chain without rules.
func (c *chain) remove(b *sock.Requests, t *table) {
	t.begin(b, c.label, unix.NFT_MSG_DELCHAIN, 0)
	b.CString(unix.NFTA_CHAIN_TABLE, t.name)
	b.CString(unix.NFTA_CHAIN_NAME, c.name)
}

const chainUserData = 12 // NFTA_CHAIN_USERDATA

// put appends the message that makes the chain. flags are added to its flags.
func (c *chain) put(b *sock.Requests, t *table, flags uint16) {
	t.begin(b, c.label, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|flags)
	b.CString(unix.NFTA_CHAIN_TABLE, t.name)
	b.CString(unix.NFTA_CHAIN_NAME, c.name)
	if c.comment != "" {
		putComment(b, chainUserData, c.comment)
	}
	if c.hook == (hook{}) {
		return
	}
	nest := b.Nest(unix.NFTA_CHAIN_HOOK)
	b.Uint32BE(unix.NFTA_HOOK_HOOKNUM, c.hook.number)
	b.Uint32BE(unix.NFTA_HOOK_PRIORITY, uint32(c.hook.priority))
	b.End(nest)
	b.Uint32BE(unix.NFTA_CHAIN_POLICY, c.hook.policy)
	b.CString(unix.NFTA_CHAIN_TYPE, c.hook.kind)
}

// problems describes the differences between the existing structure and the right one.
func (t *table) problems(is *state) []string {
	if !is.exists {
		return []string{t.label}
	}
	var list []string
	if is.flags != 0 {
		list = append(list, t.label+": flags differ")
	}
	for _, c := range t.chains() {
		h, ok := is.chains[c.name]
		switch {
		case !ok:
			list = append(list, c.label)
		case h != c.hook:
			list = append(list, c.label+": hook differs")
		case !c.has(is.rules[c.name]):
			list = append(list, c.label+": rules differ")
		}
	}
	return list
}

// has reports whether the rules of the chain are those with the comments.
func (c *chain) has(comments []string) bool {
	return slices.EqualFunc(comments, c.rules, func(comment string, one rule) bool { return comment == one.comment })
}

// inspect reads a table's structure.
func (r *Ruleset) inspect(ctx context.Context, t *table) (*state, error) {
	is := &state{chains: make(map[string]hook), rules: make(map[string][]string)}
	chains := t.chains()
	var failed error
	// Index 0 is the table itself.
	err := r.get(ctx, 1+len(chains), func(b *sock.Requests, i int) {
		if i == 0 {
			t.begin(b, t.label, unix.NFT_MSG_GETTABLE, 0)
			b.CString(unix.NFTA_TABLE_NAME, t.name)
			return
		}
		t.begin(b, chains[i-1].label, unix.NFT_MSG_GETCHAIN, 0)
		b.CString(unix.NFTA_CHAIN_TABLE, t.name)
		b.CString(unix.NFTA_CHAIN_NAME, chains[i-1].name)
	}, func(i int, payload []byte, err error) {
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			failed = errors.Join(failed, err)
		case i == 0:
			is.exists, is.flags = true, readFlags(payload)
		default:
			is.chains[chains[i-1].name] = readHook(payload)
		}
	})
	if err := errors.Join(err, failed); err != nil || !is.exists {
		return is, err
	}
	if err := r.readRules(ctx, t, "", is); err != nil {
		return is, err
	}
	return is, r.readDiffering(ctx, t, is)
}

// readDiffering reads those chains once more, one by one, whose rules differ from what they should be. The
// kernel continues a listing that takes several messages after the number of rules that it has passed, and
// counts those that a transaction adds or removes that it is still making. So a listing of a
// whole table can have rules twice, or lack some, and is not interrupted if that transaction fails.
func (r *Ruleset) readDiffering(ctx context.Context, t *table, is *state) error {
	for _, c := range t.chains() {
		if is.has(c.name) && !c.has(is.rules[c.name]) {
			if err := r.readRules(ctx, t, c.name, is); err != nil {
				return err
			}
		}
	}
	return nil
}

// readRules reads the comments of the rules of one chain, or of all if in is "". It repeats a
// listing that a change interrupted.
func (r *Ruleset) readRules(ctx context.Context, t *table, in string, is *state) error {
	return retry.Do(ctx, func() error {
		if in == "" {
			clear(is.rules)
		} else {
			delete(is.rules, in)
		}
		return r.dump(ctx, func(b *sock.Requests) {
			t.begin(b, t.label, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
			b.CString(unix.NFTA_RULE_TABLE, t.name)
			if in != "" {
				b.CString(unix.NFTA_RULE_CHAIN, in)
			}
		}, func(payload []byte) {
			var chain, comment string
			sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
				switch kind {
				case unix.NFTA_RULE_CHAIN:
					chain = sock.String(value)
				case unix.NFTA_RULE_USERDATA:
					comment = commentOf(value)
				}
			})
			is.rules[chain] = append(is.rules[chain], comment)
		})
	})
}

func readFlags(payload []byte) (flags uint32) {
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		if kind == unix.NFTA_TABLE_FLAGS {
			flags = sock.Uint32BE(value)
		}
	})
	return flags
}

// readOwner reads the number of the socket that owns a table; 0 if none does.
func readOwner(payload []byte) (owner uint32) {
	const tableOwner = 7 // NFTA_TABLE_OWNER
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		if kind == tableOwner {
			owner = sock.Uint32BE(value)
		}
	})
	return owner
}

// readHook reads the hook of a chain.
func readHook(payload []byte) (h hook) {
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_CHAIN_TYPE:
			h.kind = sock.String(value)
		case unix.NFTA_CHAIN_POLICY:
			h.policy = sock.Uint32BE(value)
		case unix.NFTA_CHAIN_HOOK:
			sock.EachAttribute(value, func(kind uint16, value []byte) {
				switch kind {
				case unix.NFTA_HOOK_HOOKNUM:
					h.number = sock.Uint32BE(value)
				case unix.NFTA_HOOK_PRIORITY:
					h.priority = int32(sock.Uint32BE(value))
				}
			})
		}
	})
	return h
}
