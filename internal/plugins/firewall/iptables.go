package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// iptablesBackend creates the reference plugin's rules in the filter table.
type iptablesBackend struct{}

var sharedRules = iptables.NewLock()

func (b iptablesBackend) add(ctx context.Context, _ *sdk.CmdArgs, p *attachment) error {
	var steps []sdk.Step
	for _, family := range p.families() {
		t, err := openProgram(family)
		if err != nil {
			return err
		}
		own := p.own(family)
		steps = append(steps,
			sdk.Step{Name: t.Name + ": create the shared rules", Do: func(ctx context.Context) error {
				return sharedRules.Hold(ctx, func() error { return t.Ensure(ctx, table, p.shared()) })
			}},
			sdk.Step{Name: t.Name + ": accept addresses", Do: func(ctx context.Context) error {
				if err := t.Ensure(ctx, table, own); err != nil {
					ctx, cancel := sdk.UndoContext(ctx)
					defer cancel()
					return errors.Join(err, t.Remove(ctx, table, own))
				}
				return nil
			}, Undo: func(ctx context.Context) error { return t.Remove(ctx, table, own) }})
	}
	return sdk.Run(ctx, steps...)
}

func (b iptablesBackend) check(ctx context.Context, _ *sdk.CmdArgs, p *attachment) error {
	var errs []error
	for _, family := range p.families() {
		t, err := openProgram(family)
		if err == nil {
			err = t.Check(ctx, table, append(p.shared(), p.own(family)...))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// del removes the rules of the addresses and of the attachment's own guard. Rules
// do not name their attachment, so del cannot find those of unknown addresses. If a program is not usable now,
// ADD may still have used it. Then the kernel's tables must show that there are
// no rules.
func (b iptablesBackend) del(ctx context.Context, _ *sdk.CmdArgs, p *attachment) error {
	var errs []error
	families := p.families()
	if p.ownGuard != nil && len(families) == 0 {
		families = []iptables.Family{iptables.IPv4, iptables.IPv6}
	}
	for _, family := range families {
		t, err := openProgram(family)
		if err != nil {
			errs = append(errs, p.absent(ctx, family, err))
			continue
		}
		rules := p.own(family)
		if p.ownGuard != nil {
			rules = append(rules, rulesOf(p.ownGuard)...)
		}
		if err = t.Remove(ctx, table, rules); err == nil {
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
func (p *attachment) own(family iptables.Family) []iptables.Wanted {
	var rules []iptables.Wanted
	for _, address := range p.addresses {
		if address.Is4() == (family == iptables.IPv4) {
			rules = append(rules, addressRules(netip.PrefixFrom(address, address.BitLen()))...)
		}
	}
	return rules
}

// shared returns the rules that all attachments share and that DEL keeps.
func (p *attachment) shared() []iptables.Wanted {
	rules := frameRules(p.admin)
	if p.guard != nil {
		rules = append(rules, guardRules(p.guard)...)
	}
	return rules
}

// openProgram opens the iptables program of a family.
func openProgram(family iptables.Family) (*iptables.Command, error) {
	command, err := iptables.Open(family)
	if err != nil {
		return nil, fmt.Errorf("open %s, which the backend iptables needs: %w", family.Program(), err)
	}
	return command, nil
}

const table = "filter"
