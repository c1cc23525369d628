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
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
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
		pools, _ := addresses.Pools(n) // checkConfiguration reports the error
		for _, p := range pools {
			s, err := lease.Open(p.DataDir, n.Name)
			errs = append(errs, err)
			if err == nil && !slices.ContainsFunc(stores, func(other *lease.Store) bool { return other.Dir() == s.Dir() }) {
				stores, networks = append(stores, s), append(networks, n)
			}
		}
	}
	return stores, networks, errors.Join(errs...)
}

// leases reports lease files without an owner, and leases whose owner no record, no runtime
// and no link knows and whose address no network namespace has.
func (h *Host) leases(ctx context.Context) (findings []Finding, err error) {
	stores, networks, err := h.leasesOf()
	errs := []error{err}
	known, err := h.knownOwners()
	if err != nil {
		return nil, err
	}
	var inUse map[netip.Addr]bool
	for i, s := range stores {
		all, err := s.List()
		errs = append(errs, err)
		empty, err := emptyLeases(ctx, s, networks[i], all)
		findings, errs = append(findings, empty...), append(errs, err)
		if networks[i].File == "" { // leftovers finds those of the embedded network
			continue
		}
		for _, l := range all {
			file := filepath.Join(s.Dir(), l.Addr.String())
			if known[l.Owner.ID] || !isOld(file) {
				continue
			}
			attached, err := cleanup.Attached(runtimesCache, l.Owner.ID)
			errs = append(errs, err)
			if attached || err != nil {
				continue
			}
			if inUse == nil {
				if inUse, err = usedAddresses(h.NetnsDir); err != nil {
					return findings, errors.Join(append(errs, err)...)
				}
			}
			if !inUse[l.Addr] {
				findings = append(findings, find("lease-without-owner", file, fmt.Sprintf("%s is leased to container %q in network %q, which no record and no runtime knows, and no network namespace has the address",
					l.Addr, l.Owner.ID, networks[i].Name), "rm "+file+" (if no other runtime has this container)"))
			}
		}
	}
	return findings, errors.Join(errs...)
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
	_, err := rtnl.OwnedLinks(func(o names.Owner) bool {
		known[o.ID] = true
		return false
	})
	return known, err
}

// emptyLeases reports leases that a crashed writer has left without an owner.
func emptyLeases(ctx context.Context, s *lease.Store, n *conflist.Network, all []lease.Lease) (findings []Finding, err error) {
	empty := slices.DeleteFunc(slices.Clone(all), func(l lease.Lease) bool { return l.Owner != lease.Owner{} })
	if len(empty) == 0 {
		return nil, nil
	}
	empty, err = s.Abandoned(ctx, empty)
	for _, l := range empty {
		file := filepath.Join(s.Dir(), l.Addr.String())
		findings = append(findings, find("lease-without-owner", file, fmt.Sprintf("the lease of %s in network %q is empty: its writer has crashed", l.Addr, n.Name), "rm "+file).
			withFix(func(ctx context.Context) error {
				_, err := s.Remove(ctx, []lease.Lease{l})
				return err
			}))
	}
	return findings, err
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
			addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
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
