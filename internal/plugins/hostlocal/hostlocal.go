package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/lease"
)

// hostLocal is the plugin with one configuration.
type hostLocal struct {
	sdk.Common
	dataDir, resolvConf string
	unplaced            error // why dataDir is not known
	routes              []*types.Route
	sets                []pool
	leases              *lease.Store // see inBoot
	reclaims            bool
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	p, err := parse(conf)
	if p == nil {
		return nil, err
	}
	var openErr error
	if p.leases, openErr = lease.Open(p.dataDir, p.Name); openErr != nil {
		return nil, openErr
	}
	return p, err
}

// owner returns the owner of a lease: the container's interface.
func owner(c *sdk.CmdArgs) lease.Owner { return lease.Owner{ID: c.ContainerID, IfName: c.IfName} }

// inBoot returns the store of the leases for one command. If the network reclaims leases of
// earlier boots, it is a store in this boot.
func (p *hostLocal) inBoot(c *sdk.CmdArgs) (*lease.Store, error) {
	if !p.reclaims || c.Host == nil || c.Host.Boot == nil {
		return p.leases, nil
	}
	id, err := c.Host.Boot()
	if err != nil {
		return nil, err
	}
	return p.leases.InBoot(id), nil
}

// unmarked has the data directories about which warnUnmarked has warned.
var unmarked sync.Map

// warnUnmarked logs, once per directory, that the leases of this boot will not be reclaimed.
func (p *hostLocal) warnUnmarked(leases *lease.Store, log sdk.Logger) {
	if _, warned := unmarked.LoadOrStore(leases.Dir(), true); !warned {
		log.Warn("leases cannot be reclaimed after a reboot: their file system has no extended attributes", "network", p.Name, "dir", leases.Dir())
	}
}

// Add leases one address of every range set.
func (p *hostLocal) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	requests, err := p.requests(c.Args)
	if err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: p.routes}
	if p.resolvConf != "" {
		if result.DNS, err = readResolvConf(ctx, p.resolvConf); err != nil {
			return nil, err
		}
	}
	leases, err := p.inBoot(c)
	if err != nil {
		return nil, err
	}
	inUse, lastUse := c.InUse(ctx, p.Name), make([]time.Time, len(requests))
	for i := range requests {
		requests[i].InUse = inUse
		if c.LastUse != nil {
			requests[i].LastUse = &lastUse[i]
		}
	}
	addrs, err := leases.Reserve(ctx, owner(c), requests)
	if err != nil {
		return nil, err
	}
	if c.LastUse != nil {
		*c.LastUse = lastUse
	}
	if leases.Unmarked() {
		p.warnUnmarked(leases, c.Host.Log)
	}
	for i, addr := range addrs {
		subnet, gateway := p.sets[i].find(addr)
		mask := net.CIDRMask(subnet.Bits(), addr.BitLen())
		result.IPs = append(result.IPs, &types100.IPConfig{
			Address: net.IPNet{IP: addr.AsSlice(), Mask: mask},
			Gateway: gateway,
		})
	}
	return result, nil
}

// requests assigns each requested address to the first range set that contains
// it and has no requested address yet.
func (p *hostLocal) requests(args string) ([]lease.Request, error) {
	left, err := p.requested(args)
	if err != nil {
		return nil, err
	}
	requests := make([]lease.Request, len(p.sets))
	for i, set := range p.sets {
		requests[i].Set = set.set
		for j, addr := range left {
			if set.set.Contains(addr) {
				requests[i].Address = addr
				left = append(left[:j:j], left[j+1:]...)
				break
			}
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("allocate all requested IPs: no range set for %v: %w", left, lease.ErrNotInRange)
	}
	return requests, nil
}

// Check verifies that the addresses of the previous result are still leased to
// the container. If none of them is in these ranges, it verifies that the
// container has a lease.
func (p *hostLocal) Check(ctx context.Context, c *sdk.CmdArgs) error {
	if _, err := p.requested(c.Args); err != nil {
		return err
	}
	previous, err := c.Previous(&p.Common)
	if err != nil {
		return err
	}
	addrs, err := p.addressesOf(previous)
	if err == nil {
		err = p.requireLeases(c, addrs)
	}
	if err != nil || len(addrs) > 0 {
		return err
	}
	if addrs, err = p.leases.Lookup(ctx, owner(c)); err == nil && len(addrs) == 0 {
		err = fmt.Errorf("container %q has no address of network %q", c.ContainerID, p.Name)
	}
	return err
}

// requireLeases returns an error if an address is not leased to the container.
func (p *hostLocal) requireLeases(c *sdk.CmdArgs, addrs []netip.Addr) error {
	for _, addr := range addrs {
		ok, err := p.leases.Holds(owner(c), addr)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("address %s of network %q is not leased to container %q", addr, p.Name, c.ContainerID)
		}
	}
	return nil
}

// Repair implements sdk.Repairer: it leases the addresses of the previous result to the
// container again, if their leases were lost and no other container has the addresses.
func (p *hostLocal) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	previous, err := c.Previous(&p.Common)
	if err != nil {
		return err
	}
	addrs, err := p.addressesOf(previous)
	if err != nil {
		return err
	}
	var lost []netip.Addr
	for _, addr := range addrs {
		ok, err := p.leases.Holds(owner(c), addr)
		if err != nil {
			return err
		}
		if !ok {
			lost = append(lost, addr)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	leases, err := p.inBoot(c)
	if err != nil {
		return err
	}
	return leases.Restore(ctx, owner(c), lost...)
}

// addressesOf returns the addresses of a result that are in these ranges.
func (p *hostLocal) addressesOf(result *types100.Result) ([]netip.Addr, error) {
	if result == nil {
		return nil, nil
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		addr, err := toAddr(ip.Address.IP)
		if err != nil {
			return nil, fmt.Errorf("previous result: %w", err)
		}
		for _, set := range p.sets {
			if set.set.Contains(addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs, nil
}

// Del releases the addresses leased to the container. Before that, it flushes
// their connections, so that the next holder of an address does not receive
// packets of them. It does not touch addresses leased to others. If the directory of
// the leases is not known, Del looks in the default one, and returns an
// *sdk.UnplacedError if it finds none there.
func (p *hostLocal) Del(ctx context.Context, c *sdk.CmdArgs) error {
	if p.unplaced != nil {
		held, err := p.leases.Lookup(ctx, owner(c))
		if err == nil && len(held) == 0 {
			err = &sdk.UnplacedError{What: "the lease", Err: p.unplaced}
		}
		if err != nil {
			return err
		}
	}
	// Add leased one address per range set. If the result has fewer or cannot
	// be read, Del uses the leases.
	known, err := p.addressesOf(c.PreviousOfDel(&p.Common))
	if err != nil || len(known) < len(p.sets) {
		known = nil
	}
	if err := p.disconnect(ctx, c, known); err != nil {
		return err
	}
	leases, err := p.inBoot(c)
	if err != nil {
		leases = p.leases // the end of an allocation does not depend on it
	}
	return leases.Release(ctx, owner(c), known...)
}

// disconnect flushes the connections of the addresses leased to the container.
// known may be all of these addresses.
func (p *hostLocal) disconnect(ctx context.Context, c *sdk.CmdArgs, known []netip.Addr) error {
	held := known
	for _, addr := range known {
		if ok, err := p.leases.Holds(owner(c), addr); !ok || err != nil {
			held = nil
		}
	}
	if len(held) == 0 {
		var err error
		if held, err = p.leases.Lookup(ctx, owner(c)); err != nil {
			return err
		}
		// Without a result, the firewall plugin did not know these addresses.
		if err = c.Host.LeaveAnyZone(ctx, held); err != nil {
			return err
		}
	}
	return flush(ctx, c, held)
}

func flush(ctx context.Context, c *sdk.CmdArgs, addrs []netip.Addr) error {
	if c.Host == nil || c.Host.Conntrack == nil {
		return nil
	}
	return c.Host.Conntrack.FlushAddresses(ctx, addrs...)
}

// Bind implements sdk.Binder: a slot is not for requests that contain addresses. It returns an
// error if a lease of the slot was removed, because another container can have the address,
// or if ADD would now return another DNS.
func (p *hostLocal) Bind(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(&p.Common)
	if err != nil || r == nil {
		return err
	}
	addrs, err := p.addressesOf(r)
	if err == nil {
		err = p.requireLeases(c, addrs)
	}
	if err != nil || p.resolvConf == "" || len(p.DNS) > 0 { // the network's own DNS is preferred
		return err
	}
	now, err := readResolvConf(ctx, p.resolvConf)
	same := now.Domain == r.DNS.Domain && slices.Equal(now.Nameservers, r.DNS.Nameservers) &&
		slices.Equal(now.Search, r.DNS.Search) && slices.Equal(now.Options, r.DNS.Options)
	if err == nil && !same {
		err = fmt.Errorf("resolvConf %q has changed", p.resolvConf)
	}
	return err
}

// Status reports whether every range set has a free address.
func (p *hostLocal) Status(_ context.Context, c *sdk.CmdArgs) error {
	leases, err := p.inBoot(c)
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "no boot ID", err.Error())
	}
	sets := make([]lease.RangeSet, len(p.sets))
	for i, set := range p.sets {
		sets[i] = set.set
	}
	if err := leases.Available(sets); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "no free address", err.Error())
	}
	return nil
}

// Planned implements sdk.Planner. The gateway of a range set is that of its first range.
func (p *hostLocal) Planned() (*types100.Result, error) {
	planned := &types100.Result{Routes: slices.Clone(p.routes)}
	for _, set := range p.sets {
		first := set.set[0].First
		planned.IPs = append(planned.IPs, &types100.IPConfig{
			Address: net.IPNet{IP: first.AsSlice(), Mask: net.CIDRMask(set.nets[0].Bits(), first.BitLen())}, Gateway: set.gates[0],
		})
	}
	return planned, nil
}

// GC releases the leases of the network that belong to no valid attachment.
// Several users may share the directory without knowing each other's
// attachments. So GC keeps a lease if its owner has a link of another instance.
// A lease whose owner has no link, or not yet, cannot be assigned to an
// instance.
func (p *hostLocal) GC(ctx context.Context, c *sdk.CmdArgs) error {
	valid := make([]lease.Owner, len(c.Valid))
	for i, a := range c.Valid {
		valid[i] = lease.Owner{ID: a.ContainerID, IfName: a.IfName}
	}
	leases, bootErr := p.inBoot(c)
	others, err := c.Others(p.Name)
	if err := errors.Join(bootErr, err); err != nil {
		return err
	}
	spare := func(o lease.Owner) bool {
		return slices.ContainsFunc(others, func(other names.Owner) bool {
			return other.OfID(o.ID) && (o.IfName == other.IfName || o.IfName == "")
		})
	}
	// Connections must be flushed, and addresses removed from firewalld's
	// zones, before the leases are released. So the first pass only collects
	// the leases.
	stale := map[lease.Owner]bool{}
	var addrs []netip.Addr
	_, err = leases.Retain(ctx, valid, func(o lease.Owner, held []netip.Addr) bool {
		if !spare(o) {
			stale[o], addrs = true, append(addrs, held...)
		}
		return true
	})
	if err == nil {
		err = c.Host.LeaveAnyZone(ctx, addrs)
	}
	if err == nil {
		err = flush(ctx, c, addrs)
	}
	if err != nil {
		return err
	}
	_, err = leases.Retain(ctx, valid, func(o lease.Owner, _ []netip.Addr) bool { return !stale[o] })
	return err
}
