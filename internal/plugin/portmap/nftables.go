package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"sigs.k8s.io/knftables"

	"github.com/allocnet/allocnet/internal/plugin"
)

// nftablesBackend is the reference plugin's layout: a table in each family, with
// a rule for each host port whose comment is the container's ID.
type nftablesBackend struct{}

// The reference plugin's names. It makes the chain for host ports of one address,
// which is always empty, for the sake of its older versions.
const (
	nftTable         = "cni_hostport"
	nftTableComment  = "CNI portmap plugin"
	allChain         = "hostports_all"
	hostIPChain      = "hostip_hostports"
	hostPortsChain   = "hostports"
	masqueradeChain  = "masquerading"
	preroutingChain  = "prerouting"
	outputChain      = "output"
	localDestination = "fib daddr type local"
)

func (nftablesBackend) add(ctx context.Context, _ *plugin.Call, p *publication) error {
	var steps []plugin.Step
	for _, address := range p.addresses {
		t, err := openNFT(address.Addr())
		if err != nil {
			return err
		}
		steps = append(steps, plugin.Step{Name: "nftables: publish host ports",
			Do:   func(ctx context.Context) error { return t.publish(ctx, p, address) },
			Undo: func(ctx context.Context) error { return t.unpublish(ctx, p.id) }})
	}
	return plugin.Run(ctx, steps...)
}

func (nftablesBackend) check(ctx context.Context, _ *plugin.Call, p *publication) error {
	var errs []error
	for _, address := range p.addresses {
		t, err := openNFT(address.Addr())
		if err == nil {
			err = t.check(ctx, p, address)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (nftablesBackend) del(ctx context.Context, _ *plugin.Call, p *publication) error {
	var errs []error
	for _, wildcard := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		t, err := openNFT(wildcard)
		if err == nil {
			err = t.unpublish(ctx, p.id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (nftablesBackend) status(context.Context, *plugin.Call) error {
	if _, err := openNFT(netip.IPv4Unspecified()); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "nftables cannot be used", err.Error())
	}
	return nil
}

// nft is the table of one family.
type nft struct {
	knftables.Interface
	keyword string // of the family in rules
}

func openNFT(addr netip.Addr) (*nft, error) {
	family, keyword := knftables.IPv4Family, "ip"
	if addr.Is6() {
		family, keyword = knftables.IPv6Family, "ip6"
	}
	table, err := knftables.New(family, nftTable)
	if err != nil {
		return nil, fmt.Errorf("use nft, which the backend nftables needs: %w", err)
	}
	return &nft{Interface: table, keyword: keyword}, nil
}

// publish makes the table, as far as it is missing, and the attachment's rules,
// in one transaction. What an ADD that was never taken back left goes.
func (t *nft) publish(ctx context.Context, p *publication, address netip.Prefix) error {
	return t.change(ctx, p.id, func(tx *knftables.Transaction) {
		conditions := p.ConditionsV4
		if address.Addr().Is6() {
			conditions = p.ConditionsV6
		}
		frame(tx, conditions, p.snat)
		for _, r := range t.rules(p, address) {
			tx.Add(r)
		}
	})
}

// frame makes what all attachments share.
func frame(tx *knftables.Transaction, conditions []string, masquerade bool) {
	tx.Add(&knftables.Table{Comment: knftables.PtrTo(nftTableComment)})
	for _, name := range []string{hostPortsChain, hostIPChain, allChain} {
		tx.Add(&knftables.Chain{Name: name})
	}
	tx.Flush(&knftables.Chain{Name: allChain})
	for _, name := range []string{hostIPChain, hostPortsChain} {
		tx.Add(&knftables.Rule{Chain: allChain, Rule: knftables.Concat("jump", name)})
	}
	base := func(name string, hook knftables.BaseChainHook, priority knftables.BaseChainPriority) *knftables.Chain {
		return &knftables.Chain{Name: name, Type: knftables.PtrTo(knftables.NATType), Hook: &hook, Priority: &priority}
	}
	for _, chain := range []*knftables.Chain{
		base(preroutingChain, knftables.PreroutingHook, knftables.DNATPriority),
		base(outputChain, knftables.OutputHook, knftables.DNATPriority),
	} {
		tx.Add(chain)
		tx.Flush(&knftables.Chain{Name: chain.Name})
		tx.Add(&knftables.Rule{Chain: chain.Name, Rule: knftables.Concat(conditions, localDestination, "jump", allChain)})
	}
	if masquerade {
		tx.Add(base(masqueradeChain, knftables.PostroutingHook, knftables.SNATPriority))
	}
}

// rules are the attachment's own.
func (t *nft) rules(p *publication, address netip.Prefix) []*knftables.Rule {
	var rules []*knftables.Rule
	add := func(chain string, words ...any) {
		rules = append(rules, &knftables.Rule{Chain: chain, Rule: knftables.Concat(words...), Comment: &p.id})
	}
	addr := address.Addr()
	for _, m := range p.of(addr) {
		var destination []string
		if m.restricted() {
			destination = []string{t.keyword, "daddr", m.HostIP}
		}
		to := netip.AddrPortFrom(addr, uint16(m.ContainerPort))
		add(hostPortsChain, destination, m.Protocol, "dport", m.HostPort, "dnat to", to.String())
	}
	if !p.snat {
		return rules
	}
	add(masqueradeChain, t.keyword, "saddr", addr.String(), t.keyword, "daddr", addr.String(), "masquerade")
	if addr.Is4() {
		add(masqueradeChain, t.keyword, "saddr 127.0.0.1", t.keyword, "daddr", addr.String(), "masquerade")
	}
	return rules
}

// unpublish deletes the container's rules, if there are any.
func (t *nft) unpublish(ctx context.Context, id string) error {
	return t.change(ctx, id, func(*knftables.Transaction) {})
}

// change deletes the container's rules and does something else in the same
// transaction. Rules are deleted by their handles; when others have changed what
// was listed, it begins again.
func (t *nft) change(ctx context.Context, id string, more func(*knftables.Transaction)) error {
	var err error
	for range attempts {
		tx := t.NewTransaction()
		for _, chain := range []string{hostPortsChain, hostIPChain, masqueradeChain} {
			own, err := t.own(ctx, chain, id)
			if err != nil {
				return err
			}
			for _, r := range own {
				tx.Delete(r)
			}
		}
		more(tx)
		if tx.NumOperations() == 0 {
			return nil
		}
		if err = t.Run(ctx, tx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(between):
		}
	}
	return fmt.Errorf("change table %s %s: %w", t.keyword, nftTable, err)
}

// own are the container's rules in a chain.
func (t *nft) own(ctx context.Context, chain, id string) ([]*knftables.Rule, error) {
	rules, err := t.ListRules(ctx, chain)
	if knftables.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list chain %s of table %s %s: %w", chain, t.keyword, nftTable, err)
	}
	var own []*knftables.Rule
	for _, r := range rules {
		if r.Comment != nil && *r.Comment == id {
			own = append(own, r)
		}
	}
	return own, nil
}

// check counts rules: nft does not show them as they were given.
func (t *nft) check(ctx context.Context, p *publication, address netip.Prefix) error {
	want := map[string]int{}
	for _, r := range t.rules(p, address) {
		want[r.Chain]++
	}
	for _, chain := range []string{hostPortsChain, masqueradeChain} {
		if want[chain] == 0 {
			continue
		}
		own, err := t.own(ctx, chain, p.id)
		if err != nil {
			return err
		}
		if len(own) < want[chain] {
			return fmt.Errorf("chain %s of table %s %s has %d rules of the container instead of %d",
				chain, t.keyword, nftTable, len(own), want[chain])
		}
	}
	return nil
}
