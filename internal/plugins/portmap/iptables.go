package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// iptablesBackend creates the reference plugin's rules in the nat table.
type iptablesBackend struct{}

var sharedRules = iptables.NewLock()

func (iptablesBackend) add(ctx context.Context, _ *sdk.CmdArgs, p *publication) error {
	var steps []sdk.Step
	for _, address := range p.addresses {
		t, err := openNAT(address.Addr())
		if err != nil {
			return err
		}
		steps = append(steps,
			sdk.Step{Name: t.Name + ": create the shared chains", Do: func(ctx context.Context) error {
				return sharedRules.Hold(ctx, func() error { return t.share(ctx, p.sharedRules()) })
			}},
			sdk.Step{Name: t.Name + ": publish host ports", Do: func(ctx context.Context) error {
				if err := t.publish(ctx, p, address); err != nil {
					ctx, cancel := sdk.UndoContext(ctx)
					defer cancel()
					return errors.Join(err, t.unpublish(ctx, ownChain(p.Name, p.id)))
				}
				return nil
			}, Undo: func(ctx context.Context) error { return t.unpublish(ctx, ownChain(p.Name, p.id)) }})
	}
	return sdk.Run(ctx, steps...)
}

func (iptablesBackend) check(ctx context.Context, _ *sdk.CmdArgs, p *publication) error {
	var errs []error
	for _, address := range p.addresses {
		t, err := openNAT(address.Addr())
		if err == nil {
			err = t.Check(ctx, table, append(p.portRules(address), p.entryRules(address.Addr())...))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// del removes the chains of both families. If the iptables command of a family
// is not usable now, ADD may still have used it. Then the kernel's tables must
// show that there are no chains.
func (iptablesBackend) del(ctx context.Context, _ *sdk.CmdArgs, p *publication) error {
	var chains []string
	for _, prefix := range []string{"CNI-DN-", "CNI-SN-"} {
		chains = append(chains, prefix+ownChain(p.Name, p.id)[len("CNI-DN-"):])
	}
	var errs []error
	for _, wildcard := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		kernel := netfilter.Table{IPv6: wildcard.Is6(), Name: table}
		t, err := openNAT(wildcard)
		if err == nil {
			_, err = t.ListChains(ctx, table)
		}
		if err != nil {
			errs = append(errs, kernel.Absent(ctx, err, chains...))
			continue
		}
		for _, chain := range chains {
			err = errors.Join(err, t.unpublish(ctx, chain))
		}
		if err == nil {
			err = kernel.Hidden(ctx, chains...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (iptablesBackend) status(ctx context.Context, _ *sdk.CmdArgs) error {
	t, err := openNAT(netip.IPv4Unspecified())
	if err == nil {
		_, err = t.ListChains(ctx, table)
	}
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "iptables is not usable", err.Error())
	}
	return nil
}

// nat is the nat table of one family.
type nat struct{ *iptables.Command }

func openNAT(addr netip.Addr) (*nat, error) {
	family := iptables.IPv4
	if addr.Is6() {
		family = iptables.IPv6
	}
	command, err := iptables.Open(family)
	if err != nil {
		return nil, fmt.Errorf("open %s, which the backend iptables needs: %w", family.Program(), err)
	}
	return &nat{command}, nil
}

const (
	attempts   = 10
	retryDelay = 20 * time.Millisecond
)

// share creates missing shared rules. If another process creates them at the
// same time, one of the two fails, retries, and finds all rules.
func (t *nat) share(ctx context.Context, rules []iptables.Wanted) error {
	var err error
	for range attempts {
		if err = t.Ensure(ctx, table, rules); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(retryDelay):
		}
	}
	return err
}

// publish fills the attachment's chain and then adds the rules that jump to it.
// Before that, it removes the chain of an earlier ADD without DEL.
func (t *nat) publish(ctx context.Context, p *publication, address netip.Prefix) error {
	chain := ownChain(p.Name, p.id)
	found, err := t.ChainExists(ctx, table, chain)
	if err == nil && found {
		err = t.unpublish(ctx, chain)
	}
	if err == nil {
		err = t.NewChain(ctx, table, chain)
	}
	if err != nil {
		return fmt.Errorf("create chain %s: %w", chain, err)
	}
	for _, r := range p.portRules(address) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.Append(ctx, table, r.Chain, r.Spec...); err != nil {
			return fmt.Errorf("create %s: %w", r, err)
		}
	}
	return t.Ensure(ctx, table, p.entryRules(address.Addr()))
}

// unpublish deletes a chain and the rules that jump to it, if they exist.
func (t *nat) unpublish(ctx context.Context, chain string) error {
	err := t.disconnect(ctx, chain)
	if found, foundErr := t.ChainExists(ctx, table, chain); foundErr != nil || !found {
		return errors.Join(err, foundErr)
	}
	if deleteErr := t.ClearAndDeleteChain(ctx, table, chain); deleteErr != nil && !iptables.IsMissing(deleteErr) {
		err = errors.Join(err, fmt.Errorf("%s: delete chain %s: %w", t.Name, chain, deleteErr))
	}
	return err
}

// disconnect deletes the rules that jump to a chain. It finds them by their
// target, because the conditions may have been different at the time of the
// ADD. Old versions of the reference plugin also had a chain for source
// addresses.
func (t *nat) disconnect(ctx context.Context, chain string) error {
	var errs []error
	for _, from := range []string{portsChain, "CNI-HOSTPORT-SNAT"} {
		found, err := t.ChainExists(ctx, table, from)
		if err == nil && !found {
			continue
		}
		lines, err := t.List(ctx, table, from)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: list chain %s: %w", t.Name, from, err))
			continue
		}
		listing, err := iptables.Parse(lines)
		errs = append(errs, err)
		for _, r := range listing.Rules {
			if r.Value("-j") != chain {
				continue
			}
			if err := t.Delete(ctx, table, from, r.Spec...); err != nil && !iptables.IsMissing(err) {
				errs = append(errs, fmt.Errorf("%s: delete rule %s: %w", t.Name, r, err))
			}
		}
	}
	return errors.Join(errs...)
}
