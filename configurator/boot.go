package configurator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Leases survive a reboot if their directory does, unlike the network. The native plugin
// host-local makes leases that name their boot, if the network's configuration has
// reclaimOnBoot, and reclaims those of earlier boots. This file does the same for leases
// that the plugin's binary makes, and for records of earlier boots.

// eachReclaimed calls f for the leases of a network whose configuration has reclaimOnBoot,
// as a store in this boot.
func (c *Configurator) eachReclaimed(n *conflist.Network, f func(*lease.Store) error) error {
	dirs := n.ReclaimedDirs()
	if len(dirs) == 0 {
		return nil
	}
	boot, err := c.boot()
	errs := []error{err}
	for _, dir := range dirs {
		if err != nil {
			break
		}
		leases, openErr := lease.Open(dir, n.Name)
		if openErr == nil {
			openErr = f(leases.InBoot(boot))
		}
		errs = append(errs, openErr)
	}
	return errors.Join(errs...)
}

// leasesByBinary reports whether the plugin host-local runs as a binary for an attachment of
// a plan.
func leasesByBinary(p *plan.Plan, i int) bool {
	return Engine(p.Engine) != EngineNative || slices.Contains(p.Attachments[i].Binaries, "host-local")
}

// reclaimForBinaries reclaims the leases of earlier boots in the networks of a plan, before
// the binary of host-local looks for a free address.
func (c *Configurator) reclaimForBinaries(ctx context.Context, p *plan.Plan) error {
	for i, n := range p.Networks {
		if !leasesByBinary(p, i) {
			continue
		}
		if err := c.eachReclaimed(n, func(s *lease.Store) error { return s.Reclaim(ctx) }); err != nil {
			return fmt.Errorf("network %q: %w", n.Name, err)
		}
	}
	return nil
}

// markForBinaries records the boot in the leases that the binary of host-local has made.
func (c *Configurator) markForBinaries(ctx context.Context, p *plan.Plan, results []*types100.Result) error {
	for i, n := range p.Networks {
		if !leasesByBinary(p, i) {
			continue
		}
		owner, addrs := leaseOwner(p, i), addressesOf(results[i])
		err := c.eachReclaimed(n, func(s *lease.Store) error {
			err := s.Mark(ctx, owner, addrs)
			if err == nil && s.Unmarked() && c.warned.first("unmarked "+s.Dir()) {
				c.cfg.Logger.Warn("leases cannot be reclaimed after a reboot: their file system has no extended attributes", "network", n.Name, "dir", s.Dir())
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("network %q: %w", n.Name, err)
		}
	}
	return nil
}

// leaseOwner returns the owner of the leases of an attachment.
func leaseOwner(p *plan.Plan, i int) lease.Owner {
	return lease.Owner{ID: p.Container(), IfName: p.Attachments[i].IfName}
}

// addressesOf returns the addresses of a result, which may be nil.
func addressesOf(result *types100.Result) []netip.Addr {
	if result == nil {
		return nil
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

// holdForTaker makes the next boot hold the addresses of a slot for the allocation that takes
// it. If that fails, the allocation gets others after a reboot.
func (c *Configurator) holdForTaker(s *slot, a *Allocation) {
	if !s.survives {
		return
	}
	err := c.eachReclaimed(s.Networks[0], func(leases *lease.Store) error {
		var errs []error
		for _, addr := range addressesOf(s.request.Attachments[0].Result) {
			errs = append(errs, leases.HoldFor(leaseOwner(s.Plan, 0), addr, a.ID))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		c.cfg.Logger.Debug("after a reboot, the allocation will get other addresses", "alloc", a.ID, "error", redact.Text(err.Error()))
	}
}

// leasesSurvive reports whether a network has leases that survive a reboot and are reclaimed
// then.
func (c *Configurator) leasesSurvive(n *conflist.Network) (survive bool) {
	err := c.eachReclaimed(n, func(s *lease.Store) error {
		survive = survive || s.Survives()
		return nil
	})
	return survive && err == nil
}

// hasFormer reports whether addresses of an earlier boot are held for an allocation with one
// network.
func (c *Configurator) hasFormer(a *Allocation, n *conflist.Network) bool {
	former := false
	owner := lease.Owner{ID: a.ID, IfName: c.cfg.InterfacePrefix + "0"}
	err := c.eachReclaimed(n, func(s *lease.Store) error {
		former = former || len(s.Former(owner)) > 0
		return nil
	})
	return former && err == nil
}

// reclaimLeases reclaims the leases of earlier boots in all configured networks, so that
// other programs can use the addresses before the first ADD.
func (c *Configurator) reclaimLeases(ctx context.Context) error {
	networks, _ := c.confs.Networks()
	var errs []error
	for _, n := range networks {
		err := c.eachReclaimed(n, func(s *lease.Store) error { return s.Reclaim(ctx) })
		if err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// endFormerBoot turns the record of an allocation that was set up in an earlier boot into
// one of an interrupted teardown: other allocations may have its addresses by now.
func endFormerBoot(r *record.Record) {
	if r.FormerBoot && r.Phase == record.Ready {
		r.Phase = record.Deleting
	}
}
