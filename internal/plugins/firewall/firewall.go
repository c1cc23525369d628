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
	unread  bool // the configuration cannot be read, so that ADD may have used any backend
}

// backend is a way to make the host forward packets.
type backend interface {
	add(context.Context, *sdk.CmdArgs, *attachment) error
	check(context.Context, *sdk.CmdArgs, *attachment) error
	// del removes everything that it finds. Without addresses, it finds objects
	// that name the attachment.
	del(context.Context, *sdk.CmdArgs, *attachment) error
	status(context.Context, *sdk.CmdArgs) error
}

// attachment is what a backend sets up for one attachment.
type attachment struct {
	network     string
	addresses   []netip.Addr
	admin       string
	guard       *ruleset.Guard // of the ingressPolicy
	published   []netip.Prefix // the addresses, if ingressPolicy admits host ports only
	ownGuard    *ruleset.Guard // for DEL: of an interface that only this attachment has
	zone        string         // the firewalld zone that has the addresses as sources
	byReference bool           // the reference plugins may have set it up
	repair      bool           // a failed repair does not remove existing elements
}

// adminChain is the reference plugin's default.
const adminChain = "CNI-ADMIN"

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	f := &firewall{}
	err := sdk.Decode(conf, f)
	f.unread = err != nil && !sdk.IsUnknownKey(err)
	f.AdminChain = cmp.Or(f.AdminChain, adminChain)
	f.FirewalldZone = cmp.Or(f.FirewalldZone, firewalld.DefaultZone)
	f.backend = zoned{zone: f.FirewalldZone, required: f.Backend == "firewalld"}
	if f.Backend == "iptables" {
		f.backend = iptablesBackend{}
	}
	return f, err
}

// Add implements sdk.Plugin. It returns the previous plugin's result.
func (f *firewall) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	previous, p, err := f.attachment(c)
	if err != nil {
		return nil, err
	}
	return previous, f.apply(ctx, c, p)
}

func (f *firewall) apply(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	if len(p.addresses) == 0 {
		return nil
	}
	return f.backend.add(ctx, c, p)
}

// Check implements sdk.Plugin.
func (f *firewall) Check(ctx context.Context, c *sdk.CmdArgs) error {
	previous, p, err := f.attachment(c)
	if err != nil || len(p.addresses) == 0 {
		return err
	}
	err = f.backend.check(ctx, c, p)
	if z, own := f.backend.(zoned); own && err != nil && sdk.AddedByReference(c, f.Name, previous) {
		if referenceErr := z.checkReference(ctx, c, p); referenceErr != nil {
			return errors.Join(err, referenceErr)
		}
		return nil
	}
	return err
}

// Del implements sdk.Plugin. It keeps the ingressPolicy of a bridge, because
// other attachments may use the bridge, but not that of a veth.
func (f *firewall) Del(ctx context.Context, c *sdk.CmdArgs) error {
	previous := c.PreviousOfDel(&f.Common)
	p := &attachment{network: f.Name, admin: f.AdminChain, addresses: sdk.Addresses(previous)}
	policy, err := f.closedPolicy()
	if policy == published || c.DropIn() { // whose configuration may have changed since ADD
		p.published = networks(previous)
	}
	if err == nil && policy != "" && policy != published {
		p.ownGuard = &ruleset.Guard{Bridge: c.Owner(f.Name).Veth(), Isolated: policy == isolated}
	}
	p.byReference = sdk.AddedByReference(c, f.Name, previous)
	return errors.Join(f.backend.del(ctx, c, p), f.delReference(ctx, c, p))
}

// Bind implements sdk.Binder: it makes sure that the rule exists that all attachments share.
func (f *firewall) Bind(ctx context.Context, c *sdk.CmdArgs) error {
	_, p, err := f.attachment(c)
	if err != nil || len(p.addresses) == 0 {
		return err
	}
	if _, own := f.backend.(zoned); !own {
		return nil
	}
	if runs, err := c.Host.Firewalld.Runs(ctx); runs || err != nil {
		return errors.Join(err, errors.New("firewalld runs now: the addresses are in no zone"))
	}
	if c.Unchanged && c.Host.Accept.Known(p.families(), p.admin) {
		return nil
	}
	return p.ensureAccept(ctx, c)
}

// Disconnect implements sdk.Disconnecter.
func (f *firewall) Disconnect(ctx context.Context, c *sdk.CmdArgs) error {
	if _, own := f.backend.(zoned); !own {
		return sdk.ErrNeedsDel
	}
	return f.Del(ctx, c)
}

// delReference removes the iptables rules of the reference plugin, if that
// plugin set up the attachment, or may have done so.
func (f *firewall) delReference(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	if _, own := f.backend.(zoned); !own || !p.byReference && !f.unread {
		return nil
	}
	return iptablesBackend{}.del(ctx, c, p)
}

// Status implements sdk.Plugin.
func (f *firewall) Status(ctx context.Context, c *sdk.CmdArgs) error {
	if err := f.Validate(nil); err != nil {
		return err
	}
	return f.backend.status(ctx, c)
}

// Validate implements sdk.Validator.
func (f *firewall) Validate(*types100.Result) error {
	if err := names.ValidateChain(f.AdminChain); err != nil {
		return fmt.Errorf("iptablesAdminChainName: %w", err)
	}
	_, err := f.closedPolicy()
	return err
}

// NoResult implements sdk.Chained.
func (f *firewall) NoResult() error { return errNoResult }

var errNoResult = sdk.Invalid(errors.New("missing prevResult: place the firewall plugin after a plugin that creates an interface"))

// GC implements sdk.Plugin. It also removes elements of other plugins for the
// same owners, whose attachments no longer exist. It does not remove rules of
// the backend iptables, because they do not name an owner.
func (f *firewall) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return c.Host.DelOwned(ctx, c.Stale(f.Name))
}

// attachment returns the attachment described by the result of the previous
// plugins.
func (f *firewall) attachment(c *sdk.CmdArgs) (*types100.Result, *attachment, error) {
	previous, err := c.Previous(&f.Common)
	if err != nil {
		return nil, nil, err
	}
	if previous == nil {
		return nil, nil, errNoResult
	}
	p := &attachment{network: f.Name, addresses: sdk.Addresses(previous), admin: f.AdminChain}
	if err := names.ValidateChain(p.admin); err != nil {
		return nil, nil, fmt.Errorf("iptablesAdminChainName: %w", err)
	}
	policy, err := f.closedPolicy()
	if err != nil || policy == "" {
		return previous, p, err
	}
	if policy == published {
		p.published = networks(previous)
		return previous, p, nil
	}
	if len(previous.Interfaces) == 0 || previous.Interfaces[0] == nil || previous.Interfaces[0].Name == "" {
		return nil, nil, fmt.Errorf("ingressPolicy %q: the first interface of prevResult is not a bridge: place the firewall plugin after the bridge plugin", policy)
	}
	if err := names.ValidateInterface(previous.Interfaces[0].Name); err != nil {
		return nil, nil, fmt.Errorf("prevResult: bridge %q: %w", previous.Interfaces[0].Name, err)
	}
	p.guard = &ruleset.Guard{Bridge: previous.Interfaces[0].Name, Isolated: policy == isolated}
	return previous, p, nil
}

// Values of ingressPolicy that restrict traffic.
const (
	sameBridge = "same-bridge"
	isolated   = "isolated"
	// published admits from other networks and hosts what is for host ports. The reference plugin
	// refuses it.
	published = "published"
)

// closedPolicy returns the ingressPolicy, or "" if it restricts nothing.
func (f *firewall) closedPolicy() (string, error) {
	switch f.IngressPolicy {
	case "", "open":
		return "", nil
	case published:
		if f.Backend == "iptables" {
			return "", sdk.Invalid(fmt.Errorf("ingressPolicy %q needs allocnet's tables: remove \"backend\": %q", published, f.Backend))
		}
		return published, nil
	case sameBridge, isolated:
		return f.IngressPolicy, nil
	}
	return "", sdk.Invalid(fmt.Errorf("unknown ingress policy: %q", f.IngressPolicy))
}

// networks returns the addresses of the container, each with the prefix length of its network.
func networks(r *types100.Result) []netip.Prefix {
	if r == nil {
		return nil
	}
	var list []netip.Prefix
	for _, ip := range sdk.ContainerIPs(r) {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			bits, _ := ip.Address.Mask.Size()
			list = append(list, netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	return list
}
