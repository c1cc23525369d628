package spoofcheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/retry"
)

// ErrUnsupported: the kernel does not support nftables of family bridge.
var ErrUnsupported = errors.New("the kernel has no nftables of family bridge (CONFIG_NF_TABLES_BRIDGE); use a kernel that has it, or remove macspoofchk from the configuration")

// ErrTaken: the chains of this container and interface belong to another owner
// on the same host.
var ErrTaken = errors.New("another allocation owns the rules of this container and interface")

// ErrMissing: the rules differ from those that Add creates.
var ErrMissing = errors.New("rules of macspoofchk are missing")

// found is the state of one attachment in the kernel.
type found struct {
	leading, iface, mac []*nftables.Rule
	chains              []*nftables.Chain // in the order in which they can be deleted
}

// Add makes the kernel drop frames that a port sends from another MAC. The link
// need not exist yet. In one transaction, Add replaces rules that an earlier
// Add of the same owner or the reference plugin left.
func Add(ctx context.Context, p *Port) error {
	l := layoutOf(p.Owner)
	err := retry.Do(ctx, func() error {
		had, err := l.look(ctx)
		if err != nil {
			return err
		}
		if o, ok := OwnerOf(had.mac); ok && o.String() != p.Owner.String() {
			return fmt.Errorf("%w: %s", ErrTaken, o.String())
		}
		return l.replace(had, p)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("add rules of macspoofchk: %w", err)
	}
	return nil
}

// replace replaces the rules that were found by the rules of p, in one transaction.
func (l *layout) replace(had *found, p *Port) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.AddTable(l.table)
	for _, c := range []*nftables.Chain{l.base, l.iface, l.mac} {
		conn.AddChain(c)
	}
	conn.FlushChain(l.iface)
	conn.FlushChain(l.mac)
	for _, r := range had.leading {
		if err := conn.DelRule(r); err != nil {
			return err
		}
	}
	for _, r := range l.rules(p) {
		conn.AddRule(r)
	}
	return changed(conn.Flush())
}

// changed makes retry.Do list the rules again if some of them are gone.
func changed(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", retry.ErrChanged, err)
	}
	return err
}

// Check looks for the rules of a port, no matter which plugin added them. The
// error is ErrMissing if some are missing.
func Check(ctx context.Context, p *Port) error {
	l := layoutOf(p.Owner)
	has, err := l.look(ctx)
	if err != nil {
		return err
	}
	n := len(has.mac)
	switch {
	case !slices.ContainsFunc(has.leading, func(r *nftables.Rule) bool { return compares(r, []byte(p.Link)) }):
		return fmt.Errorf("%w: no rule in chain %s jumps from interface %q to chain %s", ErrMissing, BaseChainName, p.Link, l.iface.Name)
	case !slices.ContainsFunc(has.iface, func(r *nftables.Rule) bool { return LeadsTo(r, l.mac.Name) }):
		return fmt.Errorf("%w: chain %s does not jump to the chain of the MAC", ErrMissing, l.iface.Name)
	case n == 0 || !decides(has.mac[n-1], expr.VerdictDrop) || len(has.mac[n-1].Exprs) != 1:
		return fmt.Errorf("%w: chain %s does not end with a drop", ErrMissing, l.mac.Name)
	case slices.ContainsFunc(has.mac[:n-1], func(r *nftables.Rule) bool { return !compares(r, p.MAC) || !decides(r, expr.VerdictReturn) }):
		return fmt.Errorf("%w: chain %s accepts other MACs than %s", ErrMissing, l.mac.Name, p.MAC)
	}
	return nil
}

// Del removes the rules of an attachment, if there are any. It keeps rules that
// name another owner.
func Del(ctx context.Context, o names.Owner) error { return layoutOf(o).del(ctx, o.String()) }

// del deletes the rules of the attachment, unless they name an owner other than the
// given one.
func (l *layout) del(ctx context.Context, owner string) error {
	err := retry.Do(ctx, func() error {
		had, err := l.look(ctx)
		if err != nil {
			return err
		}
		if other, ok := OwnerOf(had.mac); ok && other.String() != owner {
			return nil
		}
		return had.delete()
	})
	if err != nil {
		return fmt.Errorf("delete rules of macspoofchk: %w", err)
	}
	return nil
}

// delete deletes the rules and chains in one transaction.
func (f *found) delete() error {
	if len(f.leading)+len(f.chains) == 0 {
		return nil
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	for _, r := range f.leading {
		if err := conn.DelRule(r); err != nil {
			return err
		}
	}
	for _, c := range f.chains {
		conn.DelChain(c)
	}
	return changed(conn.Flush())
}

// look lists the rules of an attachment. The list is empty if the kernel does
// not support the family.
func (l *layout) look(ctx context.Context) (*found, error) {
	var f *found
	err := netfilter.Look(ctx, func(conn *nftables.Conn) error {
		f = &found{}
		chains, err := conn.ListChainsOfTableFamily(l.table.Family)
		if netfilter.IsUnsupported(err) {
			return nil
		}
		has := func(name string) bool {
			return slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == TableName && c.Name == name })
		}
		for _, part := range []struct {
			chain *nftables.Chain
			rules *[]*nftables.Rule
		}{{l.base, &f.leading}, {l.iface, &f.iface}, {l.mac, &f.mac}} {
			if err != nil || !has(part.chain.Name) {
				continue
			}
			if *part.rules, err = conn.GetRules(l.table, part.chain); part.chain != l.base {
				f.chains = append(f.chains, part.chain)
			}
		}
		f.leading = slices.DeleteFunc(f.leading, func(r *nftables.Rule) bool { return !LeadsTo(r, l.iface.Name) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of macspoofchk: %w", err)
	}
	if f == nil { // the kernel has no nftables
		f = &found{}
	}
	return f, nil
}

// Collect removes the rules of owners for which stale is true.
func Collect(ctx context.Context, stale func(names.Owner) bool) error {
	var found map[string]names.Owner
	err := netfilter.Look(ctx, func(conn *nftables.Conn) (err error) {
		found, err = owners(conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("list rules of macspoofchk: %w", err)
	}
	var errs []error
	for id, o := range found {
		if stale(o) {
			l := layoutOf(names.Owner{ID: strings.TrimSuffix(id, "-"+o.IfName), IfName: o.IfName}) // the ID in o may be a hash
			errs = append(errs, l.del(ctx, o.String()))
		}
	}
	return errors.Join(errs...)
}

// owners returns the owners that rules name, by the part of the chain's name
// that identifies the attachment.
func owners(conn *nftables.Conn) (map[string]names.Owner, error) {
	found := map[string]names.Owner{}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyBridge)
	if netfilter.IsUnsupported(err) {
		return found, nil
	}
	for _, c := range chains {
		id, ours := strings.CutPrefix(c.Name, ChainPrefix)
		id, last := strings.CutSuffix(id, MACSuffix)
		if err != nil || !ours || !last || c.Table.Name != TableName {
			continue
		}
		var rules []*nftables.Rule
		if rules, err = conn.GetRules(c.Table, c); err == nil {
			if o, ok := OwnerOf(rules); ok {
				found[id] = o
			}
		}
	}
	return found, err
}
