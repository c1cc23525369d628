package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

// attachment is one attachment with its policy.
type attachment struct {
	*plugin
	args   *sdk.CmdArgs
	owner  names.Owner
	member policystate.Member
	policy *compiled // nil if everything is allowed
	// veth is the host's end of the attachment's link, and bridge its bridge; "" if there is
	// none.
	veth, bridge string
	// linkLocal is the IPv6 link-local address that the kernel derives from the container's MAC address,
	// if the result has that.
	linkLocal []netip.Addr
	// restored is true if join has made something of the policy again.
	restored bool
}

// Errors of the configuration. Setup does not retry after them.
var (
	errNoResult  = refusal("missing prevResult: place the policy plugin after the plugin that creates the interface")
	errNoStore   = refusal("network policies need allocnet's records: use the library, the daemon or the plugin allocnet, and not the plugin binaries")
	errUnguarded = refusal(`a network policy needs the source guard: remove "sourceGuard": false from the configuration of ptp or bridge`)
	errNoLink    = refusal("a network policy needs an interface of the native plugins bridge or ptp")
	errNoAddress = refusal("a network policy on a bridge needs the addresses of the allocation: add ipam to the configuration of bridge")
)

func refusal(text string) error { return types.NewError(types.ErrInvalidNetworkConfig, text, "") }

// attachmentOf returns the attachment that a result describes.
func (p *plugin) attachmentOf(c *sdk.CmdArgs, r *types100.Result) (*attachment, error) {
	if c.Host.Policies == nil {
		return nil, errNoStore
	}
	a := &attachment{plugin: p, args: c, owner: c.Owner(p.Name)}
	a.member = policystate.Member{
		Key: a.owner.Veth(), Owner: a.owner, Allocation: p.request.Allocation, Labels: p.request.Labels, Addresses: addressesOf(r),
	}
	a.links(r)
	var err error
	if a.policy, err = p.compile(c.Instance, r); err != nil || a.policy == nil {
		return a, err
	}
	if a.veth == "" {
		return nil, errNoLink
	}
	a.member.Policy = a.policy.ID
	return a, nil
}

// links finds the links of the host in a result. The bridge comes before the veth, and a VLAN
// interface of the bridge behind the container's.
func (a *attachment) links(r *types100.Result) {
	for _, i := range r.Interfaces {
		switch {
		case i.Sandbox != "":
			if mac, err := net.ParseMAC(i.Mac); err == nil && len(mac) == 6 {
				a.linkLocal = append(a.linkLocal, linkLocalOf(mac))
			}
			return
		case i.Name == a.owner.Veth():
			a.veth = i.Name
		case a.veth == "":
			a.bridge = i.Name
		}
	}
}

// linkLocalOf returns the IPv6 link-local address of a MAC address (RFC 4291, appendix A).
func linkLocalOf(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// addressesOf returns the addresses of the container.
func addressesOf(r *types100.Result) []netip.Addr {
	var list []netip.Addr
	for _, ip := range sdk.ContainerIPs(r) {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			list = append(list, a.Unmap())
		}
	}
	return list
}

// familyOf returns the family of the container's addresses as in ruleset.Policy: "" if they are of
// both, or if there are none.
func familyOf(r *types100.Result) string {
	families := map[string]bool{}
	for _, a := range addressesOf(r) {
		family := ruleset.PolicyIPv6
		if a.Is4() {
			family = ruleset.PolicyIPv4
		}
		families[family] = true
	}
	if len(families) != 1 {
		return ""
	}
	return slices.Collect(maps.Keys(families))[0]
}

// ownNetworks returns the networks of the container's addresses, and its gateways: what the preset
// no-host leaves open. IPv6 link-local addresses of the host are those of the attachment's link.
func ownNetworks(r *types100.Result) []netip.Prefix {
	list := []netip.Prefix{netip.MustParsePrefix("fe80::/10")}
	for _, ip := range sdk.ContainerIPs(r) {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			bits, _ := ip.Address.Mask.Size()
			list = append(list, netip.PrefixFrom(a.Unmap(), bits).Masked())
		}
		if a, ok := netip.AddrFromSlice(ip.Gateway); ok {
			list = append(list, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
		}
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	var outer []netip.Prefix
	for _, p := range list {
		if !slices.ContainsFunc(outer, func(o netip.Prefix) bool { return o.Contains(p.Addr()) }) {
			outer = append(outer, p)
		}
	}
	return outer
}

// elements returns the elements of the attachment in allocnet's tables.
func (a *attachment) elements() *ruleset.Elements {
	e := &ruleset.Elements{Owner: a.owner, Known: a.member.Addresses}
	if a.policy != nil {
		for _, address := range a.member.Addresses {
			e.Policed = append(e.Policed, ruleset.Policed{
				Address: address, ByAddress: a.bridge != "" || a.args.Several, Port: a.port(), Policy: a.policy.ID,
				Egress: len(a.policy.Egress) > 0, Ingress: len(a.policy.Ingress) > 0,
			})
		}
	}
	return e
}

// port returns the attachment's port of a bridge; "" if there is none.
func (a *attachment) port() string {
	if a.bridge == "" {
		return ""
	}
	return a.veth
}

// remains returns the elements that there may be, whatever the policy was.
func (a *attachment) remains() *ruleset.Elements {
	e := &ruleset.Elements{Owner: a.owner, Known: a.member.Addresses}
	for _, address := range a.member.Addresses {
		e.Policed = append(e.Policed, ruleset.Policed{Address: address, ByAddress: true, Port: a.owner.Veth()})
	}
	return e
}

// inRules returns the attachment as a member of selections in the kernel.
func (a *attachment) inRules() ruleset.Member {
	return ruleset.Member{Owner: a.owner, Addresses: a.member.Addresses}
}

// join makes the policy, and the membership of the attachment what it should be. Its elements and
// the group of its link come after that, and then finish. It is idempotent. is is the member
// that was stored before; nil if there was none.
//
// The member is stored first: it names what a removal looks for.
func (a *attachment) join(ctx context.Context) (is *policystate.Member, err error) {
	s, err := a.args.Host.Policies.Share(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if s != nil {
			s.Unlock()
		}
	}()
	if is, err = s.Member(a.member.Key); err != nil {
		return nil, err
	}
	if is != nil {
		a.member.Former = is.Former
		if is.Policy != a.member.Policy && is.Policy != "" {
			a.member.Former = is.Policy
		}
	}
	if err := s.PutMember(&a.member, is); err != nil {
		return nil, err
	}
	if a.policy != nil {
		found, err := s.Use(a.policy.ID, a.member.Key)
		if err == nil && found {
			found, err = a.inKernel(ctx)
		}
		if err == nil && !found {
			s.Unlock()
			if s, err = a.args.Host.Policies.Exclusive(ctx); err == nil {
				err = a.makePolicy(ctx, s)
			}
		}
		if err != nil {
			return nil, err
		}
	} else if known, err := a.args.Host.Rules.KnowsAllocations(ctx); err != nil || !known {
		s.Unlock()
		if s, err = a.args.Host.Policies.Exclusive(ctx); err == nil {
			err = knowAll(ctx, a.args.Host, s, a.member.Key)
		}
		if err != nil {
			return nil, err
		}
	}
	return is, a.joinSelections(ctx, s)
}

// inKernel reports whether the policy is in the kernel. Another program can have removed it, or a
// reboot that the store has survived.
func (a *attachment) inKernel(ctx context.Context) (bool, error) {
	group, err := a.storedGroup()
	if err != nil {
		return false, err
	}
	chains := a.policy.chains.Load()
	if chains == nil {
		if chains, err = rulesOf(&a.policy.Policy, &a.policy.content).Chains(); err != nil {
			return false, err
		}
		a.policy.chains.Store(chains)
	}
	return a.args.Host.Rules.HasPolicy(ctx, chains, group)
}

// joinSelections adds the member to its selections, and removes it from those of its former
// labels.
func (a *attachment) joinSelections(ctx context.Context, s *policystate.Session) error {
	in, others, err := selectionsOf(s, &a.member)
	if err != nil {
		return err
	}
	if err := a.args.Host.Rules.JoinSelections(ctx, a.inRules(), in); err != nil || !a.member.Changing {
		return err
	}
	return a.args.Host.Rules.LeaveSelections(ctx, a.inRules(), others)
}

// finish records that a change is complete. Until then, a repetition of the change also ends
// connections.
func (a *attachment) finish(ctx context.Context) error {
	if a.member.Changing {
		s, err := a.args.Host.Policies.Share(ctx)
		if err != nil {
			return err
		}
		err = s.EndChange(&a.member)
		s.Unlock()
		if err != nil {
			return err
		}
	}
	return a.leaveFormer(ctx)
}

// leaveFormer ends the use of the policy that the attachment had before. Nothing leads to it any
// more.
func (a *attachment) leaveFormer(ctx context.Context) error {
	if a.member.Former == "" {
		return nil
	}
	if err := a.args.Host.Rules.ForgetDenials(ctx, a.member.Addresses, false); err != nil {
		return err
	}
	s, err := a.args.Host.Policies.Share(ctx)
	if err != nil {
		return err
	}
	unused := false
	if a.member.Former != a.member.Policy {
		unused, err = s.Leave(a.member.Former, a.member.Key)
	}
	s.Unlock()
	if err == nil && unused {
		err = sweepLeft(ctx, a.args.Host, []string{a.member.Former})
	}
	if err != nil {
		return err
	}
	if s, err = a.args.Host.Policies.Share(ctx); err != nil {
		return err
	}
	defer s.Unlock()
	stored := a.member
	a.member.Former = ""
	return s.PutMember(&a.member, &stored)
}

// selectionsOf returns the names of the selections that a member belongs to, and of others to
// which it may have belonged.
func selectionsOf(s *policystate.Session, m *policystate.Member) (in, others []string, err error) {
	candidates, err := s.SelectionsOf(m)
	if err != nil {
		return nil, nil, err
	}
	for i := range candidates {
		yes, err := selects(&candidates[i], m)
		switch {
		case err != nil:
			return nil, nil, err
		case yes:
			in = append(in, candidates[i].Name)
		default:
			others = append(others, candidates[i].Name)
		}
	}
	return in, others, nil
}

// leave removes the attachment from its selections and its policy. Whatever the policy is now,
// the stored member has what it was.
func (a *attachment) leave(ctx context.Context) error {
	s, err := a.args.Host.Policies.Share(ctx)
	if err != nil {
		return err
	}
	unused, err := a.leaveLocked(ctx, s)
	s.Unlock()
	if err == nil && len(unused) > 0 {
		err = sweepLeft(ctx, a.args.Host, unused, a.member.Key)
	}
	return err
}

func (a *attachment) leaveLocked(ctx context.Context, s *policystate.Session) (unused []string, err error) {
	is, err := s.Member(a.member.Key)
	if err != nil {
		return nil, err
	}
	if is == nil { // a draft at most
		return nil, s.DeleteMember(&policystate.Member{Key: a.member.Key})
	}
	return drop(ctx, a.args.Host, s, is, a.owner)
}

// drop removes a member from its selections and its policies, and returns those that are unused
// then. If there are any, the member is Gone: remove them, and then the member.
func drop(ctx context.Context, host *sdk.Host, s *policystate.Session, m *policystate.Member, owner names.Owner) (unused []string, err error) {
	selections, others, err := selectionsOf(s, m)
	if m.Changing {
		selections = append(selections, others...)
	}
	if err == nil {
		err = host.Rules.LeaveSelections(ctx, ruleset.Member{Owner: owner, Addresses: m.Addresses}, selections)
	}
	if err == nil { // what knowAll has added since the DEL of the elements
		err = host.Rules.Del(ctx, &ruleset.Elements{Owner: owner, Known: m.Addresses})
	}
	if err == nil {
		err = host.Rules.ForgetDenials(ctx, m.Addresses, true)
	}
	for _, id := range []string{m.Policy, m.Former} {
		if err != nil || id == "" {
			continue
		}
		var last bool
		if last, err = s.Leave(id, m.Key); last {
			unused = append(unused, id)
		}
	}
	switch {
	case err != nil:
	case len(unused) > 0:
		err = s.Retire(m)
	default:
		err = s.DeleteMember(m)
	}
	if err != nil {
		return unused, fmt.Errorf("remove %s from its policy: %w", owner, err)
	}
	return unused, nil
}
