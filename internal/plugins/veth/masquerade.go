package veth

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Masquerade is ipMasq, ipMasqBackend and ipMasqExcept of a network. With a
// backend, the rules have the reference plugins' layout; without one, they are
// elements of allocnet's tables.
type Masquerade struct {
	On      bool
	Backend *string
	Network string
	// Except are networks to which packets keep their source address, in addition
	// to that of the address.
	Except []netip.Prefix
}

// Validate returns an error for an unknown backend.
func (m Masquerade) Validate() error {
	if !m.On || m.Backend == nil || *m.Backend == "iptables" || *m.Backend == "nftables" {
		return nil
	}
	return errBackend(*m.Backend)
}

// ValidateExcept returns an error for a network in Except that is none. An IPv4
// network has to be written as such.
func (m Masquerade) ValidateExcept() error {
	for i, p := range m.Except {
		if !p.IsValid() || p.Addr().Is4In6() {
			return types.NewError(types.ErrInvalidNetworkConfig,
				fmt.Sprintf("network %d of ipMasqExcept is not one such as 10.0.0.0/8 or fd00::/8", i+1), "")
		}
	}
	return nil
}

func errBackend(name string) error { return sdk.Invalid(fmt.Errorf("unknown ipmasq backend %q", name)) }

// Add masquerades traffic from the addresses of a result behind the host's
// address.
func (m Masquerade) Add(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	switch {
	case !m.On:
		return nil
	case m.hasBackend():
		return m.addReference(ctx, c, r)
	}
	return c.AddElements(ctx, sdk.Addition{Elements: m.elements(c, r)})
}

// Undo removes what Add has added.
func (m Masquerade) Undo(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	switch {
	case !m.On:
		return nil
	case m.hasBackend():
		return m.delReference(ctx, c)
	}
	return c.Host.Rules.Del(ctx, m.elements(c, r))
}

// hasBackend reports whether the rules have the layout of the reference plugins.
func (m Masquerade) hasBackend() bool { return m.On && m.Backend != nil }

// hasElements reports whether the masquerading consists of elements.
func (m Masquerade) hasElements() bool { return m.On && m.Backend == nil }

// addReference adds the rules of the reference plugins. It does nothing
// without a backend.
func (m Masquerade) addReference(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	if !m.hasBackend() {
		return nil
	}
	return m.reference(c).add(ctx, *m.Backend, m.addresses(r))
}

// restoreReference is addReference of rules of which some may be missing. If so, it flushes the connections that began
// meanwhile: they would go on without masquerading.
func (m Masquerade) restoreReference(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	missing := m.checkReference(ctx, c, r) != nil
	if err := m.addReference(ctx, c, r); err != nil || !missing {
		return err
	}
	err := c.Host.FlushForwarded(ctx, func(e conntrack.Entry) bool {
		return e.AnswersTo == e.Source && slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool {
			from := prefix(ip.Address)
			return from.Addr() == e.Source && !e.Answers.IsMulticast() &&
				!slices.ContainsFunc(m.kept(from), func(p netip.Prefix) bool { return p.Contains(e.Answers) })
		})
	})
	if err != nil {
		c.Host.Log.Warn("connections that began while rules were missing may go on", "error", err)
	}
	return nil
}

// delReference removes the rules of the reference plugins.
func (m Masquerade) delReference(ctx context.Context, c *sdk.CmdArgs) error {
	if !m.On {
		return nil
	}
	if err := m.reference(c).del(ctx); err != nil {
		return fmt.Errorf("remove masquerading: %w", err)
	}
	return nil
}

// checkReference returns an error if rules of the reference plugins are missing
// that the native plugin added. It does nothing without a backend.
func (m Masquerade) checkReference(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	if !m.hasBackend() {
		return nil
	}
	return m.reference(c).check(ctx, *m.Backend, m.addresses(r))
}

// collect removes rules with the reference layout that belong to no valid
// attachment.
func (m Masquerade) collect(ctx context.Context, network string, valid []types.GCAttachment) error {
	if !m.hasBackend() {
		return nil
	}
	return reference{network: network}.collect(ctx, valid)
}

func (m Masquerade) reference(c *sdk.CmdArgs) reference {
	return reference{network: m.Network, ifName: c.IfName, id: c.ContainerID}
}

// elements returns the elements of the masquerading of a result's addresses.
func (m Masquerade) elements(c *sdk.CmdArgs, r *types100.Result) *ruleset.Elements {
	e := &ruleset.Elements{Owner: c.Owner(m.Network)}
	for _, ip := range r.IPs {
		from := prefix(ip.Address)
		e.Masquerade = append(e.Masquerade, from)
		for _, to := range m.kept(from) {
			if to != from.Masked() { // which Masquerade exempts
				e.Exempt = append(e.Exempt, ruleset.Exemption{From: from, To: to})
			}
		}
	}
	return e
}

// kept returns the networks to which packets of an address keep their source
// address: its own one and those of Except, without those within another.
func (m Masquerade) kept(address netip.Prefix) []netip.Prefix {
	list := []netip.Prefix{address.Masked()}
	for _, p := range m.Except {
		if p.Addr().BitLen() == address.Addr().BitLen() {
			list = append(list, p.Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare) // a network follows those that contain it
	var outer []netip.Prefix
	for _, p := range list {
		if len(outer) == 0 || !outer[len(outer)-1].Overlaps(p) {
			outer = append(outer, p)
		}
	}
	return outer
}

func prefix(n net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

// masqueraded is an address with the networks of kept.
type masqueraded struct {
	*net.IPNet
	kept []netip.Prefix
}

func (m Masquerade) addresses(r *types100.Result) []masqueraded {
	list := make([]masqueraded, len(r.IPs))
	for i, ip := range r.IPs {
		list[i] = masqueraded{&ip.Address, m.kept(prefix(ip.Address))}
	}
	return list
}
