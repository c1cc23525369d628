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

// ErrUnsupported: the kernel has no nftables of family bridge.
var ErrUnsupported = errors.New("the kernel has no nftables of family bridge (CONFIG_NF_TABLES_BRIDGE); use a kernel that has it, or leave macspoofchk out")

// ErrTaken: the chains of that name are another owner's, on the same host.
var ErrTaken = errors.New("another allocation has the rules of this container and interface")

// ErrMissing: the rules are not as Add made them.
var ErrMissing = errors.New("rules of macspoofchk are missing")

// found is what the kernel has of one attachment.
type found struct {
	leading, iface, mac []*nftables.Rule
	chains              []*nftables.Chain // in the order in which they can be deleted
}

// Add has the kernel drop what a port sends from another MAC. The link need not be
// there yet. Rules that an earlier Add of the same owner or the reference plugin left
// are replaced. All of it is one transaction.
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

// changed has what was listed looked at again, if some of it is gone.
func changed(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", retry.ErrChanged, err)
	}
	return err
}

// Check finds the rules of a port; the error is ErrMissing where they are not all
// there. Who made them does not matter.
func Check(ctx context.Context, p *Port) error {
	l := layoutOf(p.Owner)
	has, err := l.look(ctx)
	if err != nil {
		return err
	}
	n := len(has.mac)
	switch {
	case !slices.ContainsFunc(has.leading, func(r *nftables.Rule) bool { return compares(r, []byte(p.Link)) }):
		return fmt.Errorf("%w: no rule in chain %s leads from interface %q to chain %s", ErrMissing, BaseChainName, p.Link, l.iface.Name)
	case !slices.ContainsFunc(has.iface, func(r *nftables.Rule) bool { return LeadsTo(r, l.mac.Name) }):
		return fmt.Errorf("%w: chain %s leads nowhere", ErrMissing, l.iface.Name)
	case n == 0 || !decides(has.mac[n-1], expr.VerdictDrop) || len(has.mac[n-1].Exprs) != 1:
		return fmt.Errorf("%w: chain %s does not end with a drop", ErrMissing, l.mac.Name)
	case slices.ContainsFunc(has.mac[:n-1], func(r *nftables.Rule) bool { return !compares(r, p.MAC) || !decides(r, expr.VerdictReturn) }):
		return fmt.Errorf("%w: chain %s lets through more than the MAC %s", ErrMissing, l.mac.Name, p.MAC)
	}
	return nil
}

// Del removes the rules of an attachment, if there are any. Those that name another
// owner stay.
func Del(ctx context.Context, o names.Owner) error { return layoutOf(o).del(ctx, o.String()) }

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

// look lists what there is of an attachment; nothing, where the kernel has no such
// family.
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
	if f == nil { // without nftables
		f = &found{}
	}
	return f, nil
}

// Collect removes the rules of the owners that the function names.
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
			l := layoutOf(names.Owner{ID: strings.TrimSuffix(id, "-"+o.IfName), IfName: o.IfName}) // o's own ID may be a hash
			errs = append(errs, l.del(ctx, o.String()))
		}
	}
	return errors.Join(errs...)
}

// owners are those that rules name, by what stands for the attachment in the names of
// chains.
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
