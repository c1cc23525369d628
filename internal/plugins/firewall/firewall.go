package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// firewall is the plugin with its configuration.
type firewall struct {
	sdk.Common
	Backend       string `json:"backend"`
	AdminChain    string `json:"iptablesAdminChainName"`
	FirewalldZone string `json:"firewalldZone"`
	IngressPolicy string `json:"ingressPolicy"`

	backend backend
}

var _ sdk.Repairer = (*firewall)(nil)

// backend is a way to let traffic through.
type backend interface {
	add(context.Context, *sdk.CmdArgs, *passage) error
	check(context.Context, *sdk.CmdArgs, *passage) error
	// del takes everything that it can find away; without addresses, what names
	// the attachment.
	del(context.Context, *sdk.CmdArgs, *passage) error
	status(context.Context, *sdk.CmdArgs) error
}

// passage is what one attachment is to be let through.
type passage struct {
	network   string
	addresses []netip.Addr
	admin     string
	guard     *ruleset.Guard // what the ingressPolicy closes
	zone      string         // of firewalld, that the addresses are sources of
	elsewhere bool           // the reference plugins may have let it through
	repair    bool           // what is there already stays if the rest fails
}

// adminChain is the reference plugin's default.
const adminChain = "CNI-ADMIN"

// New reads a configuration.
func New(conf []byte) (sdk.Plugin, error) {
	f := &firewall{}
	err := sdk.Decode(conf, f)
	f.AdminChain = cmp.Or(f.AdminChain, adminChain)
	f.FirewalldZone = cmp.Or(f.FirewalldZone, firewalld.DefaultZone)
	f.backend = zoned{zone: f.FirewalldZone, required: f.Backend == "firewalld"}
	if f.Backend == "iptables" {
		f.backend = iptablesBackend{}
	}
	return f, err
}

// Add implements sdk.Plugin. The result is what came from the plugin before.
func (f *firewall) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	previous, p, err := f.passage(c)
	if err != nil {
		return nil, err
	}
	return previous, f.let(ctx, c, p)
}

func (f *firewall) let(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
	if len(p.addresses) == 0 {
		return nil
	}
	return f.backend.add(ctx, c, p)
}

// Repair implements sdk.Repairer: all that ADD does is on the host, and is
// done again without harm.
func (f *firewall) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	_, p, err := f.passage(c)
	if err != nil {
		return err
	}
	p.repair = true
	return f.let(ctx, c, p)
}

// Check implements sdk.Plugin.
func (f *firewall) Check(ctx context.Context, c *sdk.CmdArgs) error {
	previous, p, err := f.passage(c)
	if err != nil || len(p.addresses) == 0 {
		return err
	}
	err = f.backend.check(ctx, c, p)
	if z, own := f.backend.(zoned); own && err != nil && sdk.MadeElsewhere(c, f.Name, previous) {
		if referenceErr := z.checkReference(ctx, c, p); referenceErr != nil {
			return errors.Join(err, referenceErr)
		}
		return nil
	}
	return err
}

// Del implements sdk.Plugin. What guards a bridge stays: others may be on it.
func (f *firewall) Del(ctx context.Context, c *sdk.CmdArgs) error {
	previous := c.PreviousOfDel(&f.Common)
	p := &passage{network: f.Name, admin: f.AdminChain, addresses: sdk.Addresses(previous)}
	p.elsewhere = sdk.MadeElsewhere(c, f.Name, previous)
	return errors.Join(f.backend.del(ctx, c, p), f.delReference(ctx, c, p))
}

// delReference removes what the reference plugin laid out in iptables, if it was that.
func (f *firewall) delReference(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
	if _, own := f.backend.(zoned); !own || !p.elsewhere {
		return nil
	}
	return iptablesBackend{}.del(ctx, c, p)
}

// Status implements sdk.Plugin.
func (f *firewall) Status(ctx context.Context, c *sdk.CmdArgs) error {
	if err := names.ValidateChain(f.AdminChain); err != nil {
		return fmt.Errorf("iptablesAdminChainName: %w", err)
	}
	if _, err := f.closes(); err != nil {
		return err
	}
	return f.backend.status(ctx, c)
}

// GC implements sdk.Plugin. Elements of other plugins go as well: their owner,
// an attachment of this network, is gone. Rules of the backend iptables do not
// name whose they are.
func (f *firewall) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return c.Host.DelOwned(ctx, c.Stale(&f.Common))
}

// passage reads what the plugins before have set up.
func (f *firewall) passage(c *sdk.CmdArgs) (*types100.Result, *passage, error) {
	previous, err := c.Previous(&f.Common)
	if err != nil {
		return nil, nil, err
	}
	if previous == nil {
		return nil, nil, errors.New("missing prevResult: the firewall plugin comes after one that makes an interface")
	}
	p := &passage{network: f.Name, addresses: sdk.Addresses(previous), admin: f.AdminChain}
	if err := names.ValidateChain(p.admin); err != nil {
		return nil, nil, fmt.Errorf("iptablesAdminChainName: %w", err)
	}
	policy, err := f.closes()
	if err != nil || policy == "" {
		return previous, p, err
	}
	if len(previous.Interfaces) == 0 || previous.Interfaces[0] == nil || previous.Interfaces[0].Name == "" {
		return nil, nil, fmt.Errorf("ingressPolicy %q: prevResult does not begin with a bridge: put the firewall plugin behind the bridge plugin", policy)
	}
	if err := names.ValidateInterface(previous.Interfaces[0].Name); err != nil {
		return nil, nil, fmt.Errorf("prevResult: bridge %q: %w", previous.Interfaces[0].Name, err)
	}
	p.guard = &ruleset.Guard{Bridge: previous.Interfaces[0].Name, Isolated: policy == isolated}
	return previous, p, nil
}

// The values of ingressPolicy that close something.
const (
	sameBridge = "same-bridge"
	isolated   = "isolated"
)

// closes is the policy, if it closes anything.
func (f *firewall) closes() (string, error) {
	switch f.IngressPolicy {
	case "", "open":
		return "", nil
	case sameBridge, isolated:
		return f.IngressPolicy, nil
	}
	return "", fmt.Errorf("unknown ingress policy: %q", f.IngressPolicy)
}
