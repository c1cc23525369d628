package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Table is a table of iptables. Either of the two kinds of iptables, or both, can have
// made it.
type Table struct {
	IPv6 bool
	Name string
}

// String returns the command with its option, as in "iptables -t filter".
func (t Table) String() string { return t.Command() + " -t " + t.Name }

// Command returns the name of the program that manages the table.
func (t Table) Command() string {
	if t.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

func (t Table) family() nftables.TableFamily {
	if t.IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// Chains returns the names of the table's chains; none if the table does not exist.
// After an error, the chains are not known.
func (t Table) Chains(ctx context.Context) ([]string, error) {
	legacy, err := t.legacy()
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", t, err)
	}
	chains, err := t.chainsOf(ctx)
	if err != nil {
		return nil, fmt.Errorf("list chains of table %s: %w", t, err)
	}
	var names []string
	for _, chain := range chains {
		names = append(names, chain.name)
	}
	for _, chain := range legacy {
		names = append(names, chain.name)
	}
	return names, nil
}

// Addresses returns the single addresses that the rules of a chain match as a packet's
// source or destination.
func (t Table) Addresses(ctx context.Context, chain string) ([]netip.Addr, error) {
	legacy, err := t.legacy()
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", t, err)
	}
	var addresses []netip.Addr
	err = Look(ctx, func(conn *nftables.Conn) error {
		addresses = nil
		table := &nftables.Table{Family: t.family(), Name: t.Name}
		rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		for _, rule := range rules {
			addresses = append(addresses, AddressesOf(rule)...)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list chain %s of table %s: %w", chain, t, err)
	}
	for _, c := range legacy {
		if c.name == chain {
			addresses = append(addresses, c.addresses...)
		}
	}
	return addresses, nil
}

// DropsForwarded reports whether the policy of the chain FORWARD is to drop.
func (t Table) DropsForwarded(ctx context.Context) (drops bool, err error) {
	chains, err := t.chainsOf(ctx)
	if err != nil {
		return false, fmt.Errorf("list chains of table %s: %w", t, err)
	}
	if slices.Contains(chains, chain{"FORWARD", true}) {
		return true, nil
	}
	legacy, err := t.legacyTable()
	if err != nil || legacy == nil {
		return false, err
	}
	return layouts[t.IPv6].drops(legacy, unix.NF_INET_FORWARD)
}

// AddressesOf returns the single addresses that a rule compares with a packet's header.
func AddressesOf(rule *nftables.Rule) []netip.Addr {
	var addresses []netip.Addr
	for i := 1; i < len(rule.Exprs); i++ {
		load, _ := rule.Exprs[i-1].(*expr.Payload)
		compare, _ := rule.Exprs[i].(*expr.Cmp)
		if load == nil || compare == nil || load.Base != expr.PayloadBaseNetworkHeader || compare.Op != expr.CmpOpEq {
			continue
		}
		if addr, ok := netip.AddrFromSlice(compare.Data); ok {
			addresses = append(addresses, addr)
		}
	}
	return addresses
}

// ErrHeld: an object that has to be absent is in the kernel.
var ErrHeld = errors.New("it is still in the kernel")

// Absent returns nil if the kernel shows that the table has none of the chains. It is
// for a command that is missing or does not work: without the chains, the command is
// not needed. Otherwise the error wraps cause, the error of the command.
func (t Table) Absent(ctx context.Context, cause error, chains ...string) error {
	there, err := t.Chains(ctx)
	if err != nil {
		return fmt.Errorf("%w; without it: %w", cause, err)
	}
	for _, chain := range chains {
		if slices.Contains(there, chain) {
			return t.Held(cause, "chain "+chain)
		}
	}
	return nil
}

// Held returns the error for an object in the table that only the table's command can
// remove.
func (t Table) Held(cause error, what string) error {
	return fmt.Errorf("table %s: %s: %w, but %w; see that %s can be run, then try again",
		t, what, ErrHeld, cause, t.Command())
}

// errOtherKind: the command works, but does not list an object that the kernel has.
var errOtherKind = errors.New("iptables of the other kind (legacy or nf_tables) made it")

// Hidden returns nil if the kernel shows that the table has none of the chains. It is
// for chains that the table's command does not list although it works: iptables-legacy
// and iptables-nft do not see each other's rules.
func (t Table) Hidden(ctx context.Context, chains ...string) error {
	there, err := t.HiddenChains(ctx)
	for _, chain := range chains {
		if slices.Contains(there, chain) {
			return t.HeldByOther("chain " + chain)
		}
	}
	return err
}

// HiddenAddresses is like Addresses, but returns none if the table's command lists all
// of them.
func (t Table) HiddenAddresses(ctx context.Context, chain string) ([]netip.Addr, error) {
	if both, err := t.mayBeBoth(); err != nil || !both {
		return nil, err
	}
	return t.Addresses(ctx, chain)
}

// HiddenChains is like Chains, but returns none if the table's command lists all of
// them.
func (t Table) HiddenChains(ctx context.Context) ([]string, error) {
	if both, err := t.mayBeBoth(); err != nil || !both {
		return nil, err
	}
	return t.Chains(ctx)
}

// mayBeBoth reports whether both kinds of iptables may have made the table. It is
// called after a command has listed the table. iptables-legacy creates the table that
// it lists; so if there is no legacy table, the command was iptables-nft and has listed
// everything.
func (t Table) mayBeBoth() (bool, error) {
	legacy, err := t.legacyTable()
	return legacy != nil, err
}

// HeldByOther returns the error for an object in the table that the table's command
// does not list.
func (t Table) HeldByOther(what string) error {
	return fmt.Errorf("table %s: %s: %w, but %w; set %s to that kind, then try again",
		t, what, ErrHeld, errOtherKind, t.Command())
}
