package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// iptablesBackend creates the reference plugin's rules in the filter table.
type iptablesBackend struct{}

// sharedRulesMu serializes the ADDs of this process while they look for the
// shared rules and create missing ones.
var sharedRulesMu sync.Mutex

func (b iptablesBackend) add(ctx context.Context, _ *sdk.CmdArgs, p *attachment) error {
	var steps []sdk.Step
	for _, family := range p.families() {
		t, err := openTable(family)
		if err != nil {
			return err
		}
		own := p.own(family)
		steps = append(steps,
			sdk.Step{Name: t.Name + ": create the shared rules", Do: func(ctx context.Context) error {
				sharedRulesMu.Lock()
				defer sharedRulesMu.Unlock()
				return t.ensure(ctx, p.shared())
			}},
			sdk.Step{Name: t.Name + ": accept addresses", Do: func(ctx context.Context) error {
				if err := t.ensure(ctx, own); err != nil {
					return errors.Join(err, t.remove(own))
				}
				return nil
			}, Undo: func(context.Context) error { return t.remove(own) }})
	}
	return sdk.Run(ctx, steps...)
}

func (b iptablesBackend) check(ctx context.Context, _ *sdk.CmdArgs, p *attachment) error {
	var errs []error
	for _, family := range p.families() {
		t, err := openTable(family)
		if err == nil {
			err = t.check(ctx, append(p.shared(), p.own(family)...))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// del removes the rules of the addresses. Rules do not name their attachment,
// so del cannot find them without addresses. If a program is not usable now,
// ADD may still have used it. Then the kernel's tables must show that there are
// no rules.
func (b iptablesBackend) del(ctx context.Context, _ *sdk.CmdArgs, p *attachment) error {
	var errs []error
	for _, family := range p.families() {
		t, err := openTable(family)
		if err != nil {
			errs = append(errs, p.absent(ctx, family, err))
			continue
		}
		if err = t.remove(p.own(family)); err == nil {
			err = p.unhidden(ctx, family)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// absent returns nil if the kernel has no rule for the addresses of a family.
func (p *attachment) absent(ctx context.Context, family iptables.Family, cause error) error {
	t := netfilter.Table{IPv6: family == iptables.IPv6, Name: table}
	accepted, err := t.Addresses(ctx, privateChain)
	if err != nil {
		return fmt.Errorf("%w; without it: %w", cause, err)
	}
	for _, address := range accepted {
		if slices.Contains(p.addresses, address) {
			return t.Held(cause, fmt.Sprintf("rule of chain %s for %s", privateChain, address))
		}
	}
	return nil
}

// unhidden returns nil if the kernel has no rule for the addresses of a family
// that the working iptables program does not list.
func (p *attachment) unhidden(ctx context.Context, family iptables.Family) error {
	t := netfilter.Table{IPv6: family == iptables.IPv6, Name: table}
	accepted, err := t.HiddenAddresses(ctx, privateChain)
	for _, address := range accepted {
		if slices.Contains(p.addresses, address) {
			return t.HeldByOther(fmt.Sprintf("rule of chain %s for %s", privateChain, address))
		}
	}
	return err
}

func (b iptablesBackend) status(context.Context, *sdk.CmdArgs) error {
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		if _, err := exec.LookPath(family.Program()); err != nil {
			return types.NewError(types.ErrPluginNotAvailable, "iptables is not usable", err.Error())
		}
	}
	return nil
}

// own returns the rules of the attachment's addresses in one family.
func (p *attachment) own(family iptables.Family) []rule {
	var rules []rule
	for _, address := range p.addresses {
		if address.Is4() == (family == iptables.IPv4) {
			rules = append(rules, addressRules(netip.PrefixFrom(address, address.BitLen()))...)
		}
	}
	return rules
}

// shared returns the rules that all attachments share and that DEL keeps.
func (p *attachment) shared() []rule {
	rules := frameRules(p.admin)
	if p.guard != nil {
		rules = append(rules, guardRules(p.guard)...)
	}
	return rules
}

// filter is the filter table of one family.
type filter struct{ *iptables.Command }

func openTable(family iptables.Family) (*filter, error) {
	command, err := iptables.Open(family)
	if err != nil {
		return nil, fmt.Errorf("open %s, which the backend iptables needs: %w", family.Program(), err)
	}
	return &filter{command}, nil
}

const table = "filter"

// ensure creates missing rules and chains.
func (t *filter) ensure(ctx context.Context, rules []rule) error {
	for _, r := range rules {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.ensureRule(r); err != nil {
			return fmt.Errorf("create rule %s: %w", r, err)
		}
	}
	return nil
}

func (t *filter) ensureRule(r rule) error {
	if len(r.spec) == 0 {
		return t.EnsureChain(table, r.chain)
	}
	found, err := t.Exists(table, r.chain, r.spec...)
	if err != nil || found {
		return err
	}
	if r.first {
		return t.Insert(table, r.chain, 1, r.spec...)
	}
	return t.Append(table, r.chain, r.spec...)
}

// check returns an error that names the missing rules.
func (t *filter) check(ctx context.Context, rules []rule) error {
	var errs []error
	for _, r := range rules {
		if len(r.spec) == 0 {
			continue // a chain: the rules that jump to it are checked
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		found, err := t.Exists(table, r.chain, r.spec...)
		switch {
		case err != nil && !iptables.IsMissing(err):
			errs = append(errs, fmt.Errorf("%s: look for rule %s: %w", t.Name, r, err))
		case err != nil || !found:
			errs = append(errs, fmt.Errorf("%s rule is missing: %s", t.Name, r))
		}
	}
	return errors.Join(errs...)
}

// remove deletes rules. A missing rule is not an error.
func (t *filter) remove(rules []rule) error {
	var errs []error
	for _, r := range rules {
		if err := t.Delete(table, r.chain, r.spec...); err != nil && !iptables.IsMissing(err) {
			errs = append(errs, fmt.Errorf("%s: delete rule %s: %w", t.Name, r, err))
		}
	}
	return errors.Join(errs...)
}

// rule is a rule of a chain, or the chain itself if it has no spec.
type rule struct {
	chain string
	spec  []string
	first bool // insert it before the others
}

func (r rule) String() string { return r.chain + " " + strings.Join(r.spec, " ") }
