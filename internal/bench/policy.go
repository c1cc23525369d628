package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	kernelrules "github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/sandbox"
)

// The systems of the measurements of policies: without the plugin, with the plugin and no policy,
// with a policy that all allocations share, and with one of its own for each; and what the kernel needs
// for the chains of such a policy alone.
const (
	openName    = "no policy"
	labelsName  = "labels only"
	noHostName  = "no-host"
	sharedName  = "one policy"
	ownName     = "own policies"
	chainsName  = "bare chains"
	crowdedName = "10000 members, 1000 policies"
)

func policyTitle(operation, kind string) string { return operation + " with a policy, " + kind }

const (
	policyUpdateTitle  = "update of a policy"
	policyConnectTitle = "TCP connect with a policy"
)

// policed is the native engine, in a network with the plugin policy.
type policed struct {
	*configured
	policyOf func(*slot) *policy.Policy
}

func (p *policed) add(ctx context.Context, s *slot) error {
	return p.setup(ctx, configurator.Allocation{
		ID: s.id, Netns: s.netns, Ports: s.ports(), Policy: p.policyOf(s), Labels: map[string]string{"app": "bench", "slot": s.id},
	})
}

// benchPolicy permits what the measurements need. Policies with different ports are different.
func benchPolicy(port int) *policy.Policy {
	services := []policy.Service{{Protocol: "tcp", Ports: fmt.Sprint(port)}}
	direction := func() *policy.Direction {
		return &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{
			{Peers: []policy.Peer{{Name: "world"}}, Services: []policy.Service{{Protocol: "tcp", Ports: fmt.Sprint(containerPort)}}},
			{Peers: []policy.Peer{{Selector: &policy.Selector{Labels: map[string]string{"app": "bench"}}}}, Services: services},
			{Action: policy.Deny, Peers: []policy.Peer{{Name: "metadata"}}},
		}}
	}
	return &policy.Policy{Ingress: direction(), Egress: direction()}
}

// policy measures ADD, DEL and Update with policies, and connections beside many others.
func (b *bench) policy(ctx context.Context) error {
	slots, err := b.slots(ctx, spare)
	if err != nil {
		return err
	}
	for _, kind := range b.size.kinds {
		if err := b.policyOf(ctx, slots, kind); err != nil {
			return err
		}
	}
	return b.policyConnects(ctx, slots[0])
}

func none(*slot) *policy.Policy    { return nil }
func noHost(*slot) *policy.Policy  { return &policy.Policy{Presets: []policy.Preset{policy.NoHost}} }
func shared(*slot) *policy.Policy  { return benchPolicy(1) }
func ownOf(s *slot) *policy.Policy { return benchPolicy(1000 + s.index) }

func (e *environment) newPoliced(ctx context.Context, kind, name string, of func(*slot) *policy.Policy) (*policed, error) {
	n := e.newNetwork("policed", kind, false)
	n.policy = name != openName
	c, err := e.newConfigured(ctx, n, name, configurator.EngineNative)
	if err != nil {
		return nil, err
	}
	return &policed{configured: c, policyOf: of}, nil
}

func (b *bench) policyOf(ctx context.Context, slots []*slot, kind string) (err error) {
	b.progress("policies: %s", kind)
	var systems []system
	defer func() {
		for _, s := range systems {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	for _, one := range []struct {
		name string
		of   func(*slot) *policy.Policy
	}{{openName, none}, {labelsName, none}, {noHostName, noHost}, {sharedName, shared}, {ownName, ownOf}} {
		s, err := b.newPoliced(ctx, kind, one.name, one.of)
		if err != nil {
			return err
		}
		systems = append(systems, s)
	}
	chains, err := newBareChains()
	if err != nil {
		return err
	}
	systems = append(systems, chains)
	// The shared policies exist, as on a host where others have them.
	present, err := b.slots(ctx, spare+2)
	if err != nil {
		return err
	}
	other, first := present[spare], present[spare+1]
	if err := errors.Join(systems[2].add(ctx, other), systems[3].add(ctx, first)); err != nil {
		return err
	}
	measured, err := liveTurns(ctx, systems, slots, b.size.life)
	if err != nil {
		return err
	}
	for _, operation := range []string{"ADD", "DEL"} {
		for _, sys := range systems {
			b.report.add(policyTitle(operation, kind), sys.name(), seconds, measured[sys.name()].of(operation))
		}
	}
	if err := systems[2].(*policed).del(ctx, other); err != nil {
		return err
	}
	return b.policyUpdates(ctx, systems[3].(*policed), kind, first)
}

// bareChains makes the chains of a policy like that of ownName in one transaction, and nothing else: no
// selection, link, element, record or file.
type bareChains struct{ rules *kernelrules.Ruleset }

func newBareChains() (*bareChains, error) {
	rules, err := kernelrules.Open()
	if err != nil {
		return nil, err
	}
	return &bareChains{rules}, nil
}

func (c *bareChains) name() string { return chainsName }

func (c *bareChains) policy(s *slot) *kernelrules.Policy {
	tcp := func(port int) kernelrules.Services {
		return kernelrules.Services{{Protocol: unix.IPPROTO_TCP, First: uint16(port), Last: uint16(port)}}
	}
	one := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 32)
	stages := []kernelrules.Stage{{Deny: true, Rules: []kernelrules.PolicyRule{
		{Name: "world", Peer: kernelrules.Peer{World: true}, Services: tcp(containerPort)},
		{Name: "selection", Peer: kernelrules.Peer{Prefixes: []netip.Prefix{one}}, Services: tcp(1000 + s.index)},
		{Name: "metadata", Peer: kernelrules.Peer{World: true}, Deny: true},
	}}}
	return &kernelrules.Policy{
		ID: fmt.Sprint("bare", s.index), Group: names.LastPolicyGroup - uint32(s.index), Family: kernelrules.PolicyIPv4,
		Egress: stages, Ingress: stages, New: true,
	}
}

func (c *bareChains) add(ctx context.Context, s *slot) error {
	return c.rules.AddPolicy(ctx, c.policy(s))
}
func (c *bareChains) del(ctx context.Context, s *slot) error {
	return c.rules.DelPolicy(ctx, c.policy(s), nil)
}
func (c *bareChains) close(context.Context) error { return c.rules.Close() }

// policyUpdates measures updates between two policies, and removes the allocation.
func (b *bench) policyUpdates(ctx context.Context, p *policed, kind string, s *slot) error {
	var m samples
	for i := range b.size.life.fast {
		change := configurator.Change{Policy: benchPolicy(2 + i%2)}
		if err := timed(&m, func() error { _, err := p.Update(ctx, s.id, change); return err }); err != nil {
			return err
		}
	}
	b.report.add(policyUpdateTitle+", "+kind, sharedName, seconds, m)
	return p.del(ctx, s)
}

// policyConnects measures connections from outside to an allocation: without a policy, with one, and
// with one beside the policies and elements of many others. Those are made without their network
// namespaces: a packet only meets the rules and the sets.
func (b *bench) policyConnects(ctx context.Context, s *slot) error {
	outside, err := connectOutside()
	if err != nil {
		return fmt.Errorf("connect the outside: %w", err)
	}
	rules, err := kernelrules.Open()
	if err != nil {
		return err
	}
	m := map[string]*samples{openName: {}, sharedName: {}, crowdedName: {}}
	systems := map[string]*policed{}
	for name, of := range map[string]func(*slot) *policy.Policy{openName: none, sharedName: shared} {
		if systems[name], err = b.newPoliced(ctx, "ptp", name, of); err != nil {
			return err
		}
	}
	crowd := newPolicyCrowd(rules)
	parts := min(3, b.size.connectParts) // the others take seconds to add
	n := max(1, b.size.connects/parts)
	for part := range parts {
		b.progress("connections with policies: part %d of %d", part+1, parts)
		for _, one := range []struct {
			to, system string
			before     func(context.Context) error
			after      func(context.Context) error
		}{{openName, openName, nil, nil}, {sharedName, sharedName, nil, nil}, {crowdedName, sharedName, crowd.gather, crowd.disperse}} {
			sys := systems[one.system]
			if err := sys.add(ctx, s); err != nil {
				return err
			}
			if one.before != nil {
				if err := one.before(ctx); err != nil {
					return err
				}
			}
			if err := connectsTo(m[one.to], s, outside, n); err != nil {
				return err
			}
			if one.after != nil {
				if err := one.after(ctx); err != nil {
					return err
				}
			}
			if err := sys.del(ctx, s); err != nil {
				return err
			}
		}
	}
	b.report.add("policies in the kernel, of 1000, each", crowdedName, seconds, crowd.policies)
	for _, name := range []string{openName, sharedName, crowdedName} {
		b.report.add(policyConnectTitle, name, seconds, *m[name])
	}
	return errors.Join(rules.Close(), outside.Destroy())
}

func connectsTo(m *samples, s *slot, outside *sandbox.Sandbox, n int) error {
	l, err := listenIn(s)
	if err != nil {
		return err
	}
	defer l.Close()
	return m.connect(outside, netip.AddrPortFrom(wireHost.Addr(), s.hostPort()), n)
}

// policyCrowd is what 10,000 allocations with 1000 policies have in the kernel. Each policy has a
// selection of its own, and each allocation is in ten of them.
type policyCrowd struct {
	rules    *kernelrules.Ruleset
	list     []*kernelrules.Policy
	elements []*kernelrules.Elements
	policies samples // times to make one
}

const (
	crowdMembers  = 10000
	crowdPolicies = 1000
)

func newPolicyCrowd(rules *kernelrules.Ruleset) *policyCrowd {
	c := &policyCrowd{rules: rules}
	var members []kernelrules.Member
	for i := range crowdMembers {
		owner := names.Owner{Network: "crowd", ID: fmt.Sprint("crowd-", i), IfName: "eth0"}
		address := netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)})
		members = append(members, kernelrules.Member{Owner: owner, Addresses: []netip.Addr{address}})
		c.elements = append(c.elements, &kernelrules.Elements{Owner: owner, Known: []netip.Addr{address}})
	}
	for i := range crowdPolicies {
		selection := kernelrules.Selection{Name: fmt.Sprint("crowd", i)}
		for j := range 10 * crowdMembers / crowdPolicies {
			selection.Members = append(selection.Members, members[(10*i+j)%crowdMembers])
		}
		stage := kernelrules.Stage{Deny: true, Rules: []kernelrules.PolicyRule{{Name: "crowd", Peer: kernelrules.Peer{Selection: selection.Name}}}}
		c.list = append(c.list, &kernelrules.Policy{
			ID: fmt.Sprint("crowd", i), Group: names.FirstPolicyGroup + uint32(i), Egress: []kernelrules.Stage{stage}, Ingress: []kernelrules.Stage{stage},
			Selections: []kernelrules.Selection{selection},
		})
	}
	return c
}

func (c *policyCrowd) gather(ctx context.Context) error {
	for _, p := range c.list {
		start := time.Now()
		err := c.rules.AddPolicy(ctx, p)
		if errors.Is(err, kernelrules.ErrGroupTaken) { // by the policy that is measured
			p.Group = names.FirstPolicyGroup + 2*crowdPolicies
			err = c.rules.AddPolicy(ctx, p)
		}
		if err != nil {
			return err
		}
		c.policies.took(time.Since(start))
	}
	for _, e := range c.elements {
		if err := c.rules.Add(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (c *policyCrowd) disperse(ctx context.Context) error {
	for _, e := range c.elements {
		if err := c.rules.Del(ctx, e); err != nil {
			return err
		}
	}
	for _, p := range c.list {
		if err := c.rules.DelPolicy(ctx, p, []string{p.Selections[0].Name}); err != nil {
			return err
		}
	}
	return nil
}
