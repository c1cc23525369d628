package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/cmd/internal/addresses"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/sandbox"
)

// leaseTime is the age from which a lease is not one whose network is about to be set up.
const leaseTime = time.Minute

// runtimesCache is the default directory of libcni's cached results.
const runtimesCache = "/var/lib/cni"

// leasesOf returns the stores of the leases of all networks.
func (h *Host) leasesOf() (stores []*lease.Store, networks []*conflist.Network, err error) {
	var errs []error
	for _, n := range h.Networks {
		of, err := addresses.Stores(n) // checkConfiguration reports ranges that cannot be read
		errs = append(errs, err)
		for _, s := range of {
			stores, networks = append(stores, s), append(networks, n)
		}
	}
	return stores, networks, errors.Join(errs...)
}

// ownerless is a lease without an owner: no allocation, runtime or network namespace uses
// its address.
type ownerless struct {
	lease.Lease
	store   *lease.Store
	network *conflist.Network
}

func (o *ownerless) file() string { return filepath.Join(o.store.Dir(), o.Addr.String()) }

// removeUnchanged returns the repair of a lease of another runtime, whose container may have other
// leases: it keeps a file that was written since, for another container.
func (o *ownerless) removeUnchanged() string {
	return fmt.Sprintf("find %s ! -newermt @%d -delete (if no other runtime has this container)", o.file(), time.Now().Unix())
}

// Records are the records of allocations. Their IDs are the owners of most leases, and are
// read much faster than the records.
type Records struct {
	IDs  func() ([]string, error)
	List func(context.Context) ([]configurator.Record, error)
}

// LeasesWithoutOwner counts, by network, the lease files without an owner, and the leases
// whose owner no record, no runtime and no link knows and whose address no network namespace
// has.
func LeasesWithoutOwner(ctx context.Context, networks []*conflist.Network, records Records, netnsDir string) (map[string]int, error) {
	ids, err := records.IDs()
	if err != nil {
		return nil, err
	}
	h := &Host{Networks: networks, NetnsDir: netnsDir, ids: ids, list: records.List}
	list, err := h.ownerless(ctx)
	counts := make(map[string]int, len(networks))
	for _, n := range networks {
		counts[n.Name] = 0
	}
	for _, o := range list {
		counts[o.network.Name]++
	}
	return counts, err
}

// leases reports leases without an owner.
func (h *Host) leases(ctx context.Context) (findings []Finding, err error) {
	list, err := h.ownerless(ctx)
	for _, o := range list {
		switch {
		case o.Owner == lease.Owner{}:
			findings = append(findings, find("lease-without-owner", o.file(), fmt.Sprintf("the lease of %s in network %q is empty: its writer has crashed", o.Addr, o.network.Name), "find "+o.file()+" -empty -delete").
				withFix(func(ctx context.Context) error {
					_, err := o.store.Remove(ctx, []lease.Lease{o.Lease})
					return err
				}))
		case o.network.File != "": // leftovers finds those of the embedded network
			findings = append(findings, find("lease-without-owner", o.file(), fmt.Sprintf("%s is leased to container %q in network %q, which no record and no runtime knows, and no network namespace has the address",
				o.Addr, o.Owner.ID, o.network.Name), o.removeUnchanged()))
		}
	}
	return findings, err
}

// ownerless returns the leases of all networks that have no owner.
func (h *Host) ownerless(ctx context.Context) (list []ownerless, err error) {
	stores, networks, err := h.leasesOf()
	errs := []error{err}
	known, err := h.knownOwners()
	if err != nil {
		return nil, err
	}
	var unknown []ownerless
	for i, s := range stores {
		all, err := s.List()
		empty, emptyErr := emptyLeases(ctx, s, all)
		errs = append(errs, err, emptyErr)
		for _, l := range empty {
			list = append(list, ownerless{l, s, networks[i]})
		}
		for _, l := range all {
			if o := (ownerless{l, s, networks[i]}); !known[l.Owner.ID] && isOld(o.file()) {
				unknown = append(unknown, o)
			}
		}
	}
	unknown, err = h.withoutContainers(ctx, unknown)
	errs = append(errs, err)
	unknown = slices.DeleteFunc(unknown, func(o ownerless) bool {
		attached, err := cleanup.Attached(runtimesCache, o.Owner.ID)
		errs = append(errs, err)
		return attached || err != nil
	})
	if len(unknown) == 0 {
		return list, errors.Join(errs...)
	}
	inUse, err := usedAddresses(h.NetnsDir)
	if err != nil {
		return list, errors.Join(append(errs, err)...)
	}
	unknown = slices.DeleteFunc(unknown, func(o ownerless) bool { return inUse[o.Addr] })
	return append(list, unknown...), errors.Join(errs...)
}

func isOld(file string) bool {
	info, err := os.Stat(file)
	return err == nil && time.Since(info.ModTime()) > leaseTime
}

// knownOwners returns the containers that have a record or a link.
func (h *Host) knownOwners() (map[string]bool, error) {
	known := map[string]bool{"": true} // empty leases are found separately
	for i := range h.records {
		known[h.records[i].ID], known[h.records[i].ContainerID] = true, true
	}
	for _, id := range h.ids {
		known[id] = true
	}
	_, err := rtnl.OwnedLinks(func(o names.Owner) bool {
		known[o.ID] = true
		return false
	})
	return known, err
}

// withoutContainers returns the leases that are not those of a record's container, which can
// have another ID than the record. If the records cannot be read, it returns none: the owner
// could be one of them.
func (h *Host) withoutContainers(ctx context.Context, leases []ownerless) ([]ownerless, error) {
	if len(leases) == 0 || h.list == nil {
		return leases, nil
	}
	records, err := h.list(ctx)
	if err != nil {
		return nil, err
	}
	containers := map[string]bool{}
	for i := range records {
		containers[records[i].ContainerID] = true
	}
	return slices.DeleteFunc(leases, func(o ownerless) bool { return containers[o.Owner.ID] }), nil
}

// emptyLeases returns leases that a crashed writer has left without an owner.
func emptyLeases(ctx context.Context, s *lease.Store, all []lease.Lease) ([]lease.Lease, error) {
	empty := slices.DeleteFunc(slices.Clone(all), func(l lease.Lease) bool { return l.Owner != lease.Owner{} })
	if len(empty) == 0 {
		return nil, nil
	}
	return s.Abandoned(ctx, empty)
}

// usedAddresses returns the addresses in all network namespaces: those of processes and those
// with a name. A namespace that ends meanwhile has none.
func usedAddresses(netnsDir string) (map[netip.Addr]bool, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	named, err := filepath.Glob(netnsDir + "/*")
	if err != nil {
		return nil, err
	}
	used, seen := map[netip.Addr]bool{}, map[uint64]bool{}
	for _, path := range append(paths, named...) {
		info, err := os.Stat(path)
		stat, ok := infoStat(info, err)
		if !ok || seen[stat.Ino] {
			continue
		}
		seen[stat.Ino] = true
		s, err := sandbox.OpenAny(path)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, sandbox.ErrNotNamespace):
			continue
		case err != nil:
			return nil, fmt.Errorf("open network namespace %s: %w", path, err)
		}
		err = s.Do(func() error {
			addrs, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
			for _, a := range addrs {
				if addr, ok := netip.AddrFromSlice(a.IP); ok {
					used[addr.Unmap()] = true
				}
			}
			return err
		})
		if err := errors.Join(err, s.Close()); err != nil {
			return nil, fmt.Errorf("list addresses of network namespace %s: %w", path, err)
		}
	}
	return used, nil
}
