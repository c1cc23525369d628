package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// nftablesBackend creates the reference plugin's rules: one table per family,
// with a rule per host port whose comment is the container's ID. Rules of
// several attachments of one container differ in the address; the reference
// plugin does not distinguish them.
type nftablesBackend struct{}

// The reference plugin's names. Its chain for host ports of one address is
// always empty; it exists for older versions of that plugin.
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

func (nftablesBackend) add(ctx context.Context, _ *sdk.CmdArgs, p *publication) error {
	var steps []sdk.Step
	for _, address := range p.addresses {
		t := tableOf(address.Addr())
		steps = append(steps, sdk.Step{Name: "nftables: publish host ports",
			Do:   func(ctx context.Context) error { return t.publish(ctx, p, address) },
			Undo: func(ctx context.Context) error { return t.unpublish(ctx, p) }})
	}
	return sdk.Run(ctx, steps...)
}

func (nftablesBackend) check(ctx context.Context, _ *sdk.CmdArgs, p *publication) error {
	var errs []error
	for _, address := range p.addresses {
		errs = append(errs, tableOf(address.Addr()).check(ctx, p, address))
	}
	return errors.Join(errs...)
}

func (nftablesBackend) del(ctx context.Context, _ *sdk.CmdArgs, p *publication) error {
	var errs []error
	for _, wildcard := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		errs = append(errs, tableOf(wildcard).unpublish(ctx, p))
	}
	return errors.Join(errs...)
}

func (nftablesBackend) status(ctx context.Context, _ *sdk.CmdArgs) error {
	if err := tableOf(netip.IPv4Unspecified()).Usable(ctx); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "nftables is not usable", err.Error())
	}
	return nil
}

// hostports is the table of one family.
type hostports struct{ *iptables.NFTable }

func tableOf(addr netip.Addr) *hostports {
	family := "ip"
	if addr.Is6() {
		family = "ip6"
	}
	return &hostports{&iptables.NFTable{Family: family, Name: nftTable}}
}

// publish creates the missing parts of the table and the attachment's rules in
// one transaction. The transaction also removes rules that an earlier ADD
// without DEL left.
func (t *hostports) publish(ctx context.Context, p *publication, address netip.Prefix) error {
	return t.change(ctx, p, func(s *iptables.NFTScript) {
		conditions := p.ConditionsV4
		if address.Addr().Is6() {
			conditions = p.ConditionsV6
		}
		frame(s, conditions, p.snat)
		for _, r := range t.rules(p, address) {
			s.Rule(r.Chain, p.id, r.Spec...)
		}
	})
}

// nft's priorities dstnat (of every hook) and srcnat.
const (
	beforeRouting = -100
	afterRouting  = 100
)

// frame creates the chains and rules that all attachments share.
func frame(s *iptables.NFTScript, conditions []string, masquerade bool) {
	s.Make(nftTableComment)
	for _, name := range []string{hostPortsChain, hostIPChain, allChain} {
		s.Chain(name, "")
	}
	s.Flush(allChain)
	for _, name := range []string{hostIPChain, hostPortsChain} {
		s.Rule(allChain, "", "jump", name)
	}
	for _, hook := range []string{preroutingChain, outputChain} {
		s.NAT(hook, hook, beforeRouting)
		s.Flush(hook)
		s.Rule(hook, "", slices.Concat(conditions, []string{localDestination, "jump", allChain})...)
	}
	if masquerade {
		s.NAT(masqueradeChain, "postrouting", afterRouting)
	}
}

// rules returns the attachment's rules.
func (t *hostports) rules(p *publication, address netip.Prefix) []iptables.Wanted {
	var rules []iptables.Wanted
	add := func(chain string, words ...string) {
		rules = append(rules, iptables.Wanted{Chain: chain, Spec: words})
	}
	addr := address.Addr()
	for _, m := range p.of(addr) {
		var destination []string
		if m.restricted() {
			destination = []string{t.Family, "daddr", m.HostIP}
		}
		to := netip.AddrPortFrom(addr, uint16(m.ContainerPort))
		add(hostPortsChain, append(destination, m.Protocol, "dport", strconv.Itoa(m.HostPort), "dnat to", to.String())...)
	}
	if !p.snat {
		return rules
	}
	add(masqueradeChain, t.Family, "saddr", addr.String(), t.Family, "daddr", addr.String(), "masquerade")
	if addr.Is4() {
		add(masqueradeChain, t.Family, "saddr 127.0.0.1", t.Family, "daddr", addr.String(), "masquerade")
	}
	return rules
}

// unpublish deletes the attachment's rules, if there are any.
func (t *hostports) unpublish(ctx context.Context, p *publication) error {
	return t.change(ctx, p, func(*iptables.NFTScript) {})
}

// change deletes the attachment's rules and makes other changes in the same
// transaction. It deletes rules by their handles, and retries if another
// process changed the listed rules.
func (t *hostports) change(ctx context.Context, p *publication, more func(*iptables.NFTScript)) error {
	var err error
	for range attempts {
		s := t.Script()
		for _, chain := range []string{hostPortsChain, hostIPChain, masqueradeChain} {
			own, err := t.own(ctx, chain, p)
			if err != nil {
				return err
			}
			for _, r := range own {
				s.Delete(r)
			}
		}
		more(s)
		if s.Empty() {
			return nil
		}
		if err = t.Run(ctx, s); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(retryDelay):
		}
	}
	return fmt.Errorf("change table %s %s: %w", t.Family, nftTable, err)
}

// own returns the attachment's rules in a chain. If its addresses are not
// known, it returns all rules of the container.
func (t *hostports) own(ctx context.Context, chain string, p *publication) ([]iptables.NFTRule, error) {
	rules, err := t.Rules(ctx, chain)
	names := func(r iptables.NFTRule) bool {
		return len(p.addresses) == 0 || slices.ContainsFunc(p.addresses, func(a netip.Prefix) bool { return r.Names(a.Addr()) })
	}
	return slices.DeleteFunc(rules, func(r iptables.NFTRule) bool { return r.Comment != p.id || !names(r) }), err
}

// check counts rules, because nft lists them in another form than they were
// given.
func (t *hostports) check(ctx context.Context, p *publication, address netip.Prefix) error {
	want := map[string]int{}
	for _, r := range t.rules(p, address) {
		want[r.Chain]++
	}
	for _, chain := range []string{hostPortsChain, masqueradeChain} {
		if want[chain] == 0 {
			continue
		}
		own, err := t.own(ctx, chain, p)
		if err != nil {
			return err
		}
		if len(own) < want[chain] {
			return fmt.Errorf("chain %s of table %s %s has %d rules of the container instead of %d",
				chain, t.Family, nftTable, len(own), want[chain])
		}
	}
	return nil
}
