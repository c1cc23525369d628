package cleanup

import (
	"context"
	"errors"
	"slices"

	"github.com/allocnet/allocnet/internal/state/lease"
)

// leaseFinder finds the leases of host-local.
type leaseFinder struct {
	*search
	found []ownLease
}

// leaseDir is the lease directory of one network.
type leaseDir struct {
	*lease.Store
	network string
	ifNames []string // interfaces of the allocation; nil means any
}

// ownLease is a lease of the allocation, or one without an owner: a crash between the
// creation and the write of a file leaves it empty, and its address cannot be leased
// again.
type ownLease struct {
	lease.Lease
	dir leaseDir
}

func (l ownLease) leftover() Leftover {
	return Leftover{Kind: KindLease, Network: l.dir.network, Where: l.dir.Dir(), Object: l.Addr.String()}
}

func (f *leaseFinder) find(ctx context.Context) ([]Leftover, error) {
	var (
		list []Leftover
		errs []error
	)
	f.found = nil
	dirs, err := f.dirs()
	if err != nil {
		f.addresses.incomplete = true
		errs = append(errs, err)
	}
	for _, dir := range dirs {
		leases, err := f.inDir(ctx, dir)
		if err != nil {
			f.addresses.incomplete = true
			errs = append(errs, err)
		}
		f.found = append(f.found, leases...)
	}
	for _, l := range f.found {
		list = append(list, l.leftover())
	}
	return list, errors.Join(errs...)
}

// dirs returns the directories in which the allocation can have leases.
func (f *leaseFinder) dirs() ([]leaseDir, error) {
	if len(f.attachments) == 0 {
		return allLeaseDirs()
	}
	var dirs []leaseDir
	for _, a := range f.attachments {
		for _, dataDir := range a.scope.dataDirs {
			store, err := lease.Open(dataDir, a.Network)
			if err != nil {
				continue // no network has that name
			}
			i := slices.IndexFunc(dirs, func(d leaseDir) bool { return d.Dir() == store.Dir() })
			if i < 0 {
				dirs = append(dirs, leaseDir{Store: store, network: a.Network})
				i = len(dirs) - 1
			}
			dirs[i].ifNames = append(dirs[i].ifNames, a.IfName)
		}
	}
	return dirs, nil
}

// allLeaseDirs returns the directories of all networks in the default data directory of
// host-local.
func allLeaseDirs() ([]leaseDir, error) {
	networks, err := lease.Networks(lease.DefaultDataDir)
	errs := []error{err}
	var dirs []leaseDir
	for _, network := range networks {
		store, err := lease.Open(lease.DefaultDataDir, network)
		if err == nil {
			dirs = append(dirs, leaseDir{Store: store, network: network})
		}
		errs = append(errs, err)
	}
	return dirs, errors.Join(errs...)
}

// inDir returns the leases of the allocation in one directory, and records the holders
// of the other addresses.
func (f *leaseFinder) inDir(ctx context.Context, dir leaseDir) ([]ownLease, error) {
	leases, err := dir.List()
	var own, empty []lease.Lease
	for _, l := range leases {
		switch {
		case l.Owner == lease.Owner{}:
			empty = append(empty, l)
		case l.Owner.ID != f.target.ID:
			f.addresses.addForeign(l.Addr)
		case dir.has(l.Owner.IfName) && (dir.ifNames != nil || f.hasInterface(l.Owner.IfName)):
			f.addresses.addOwn(l.Addr, dir.network)
			own = append(own, l)
		}
	}
	if dir.ifNames != nil { // else the allocation may not have used this network
		abandoned, emptyErr := dir.Abandoned(ctx, empty)
		own, err = append(own, abandoned...), errors.Join(err, emptyErr)
	}
	var found []ownLease
	for _, l := range own {
		found = append(found, ownLease{l, dir})
	}
	return found, err
}

// has reports whether an interface belongs to the allocation. Leases of an old format
// have no interface.
func (d leaseDir) has(ifName string) bool {
	return d.ifNames == nil || ifName == "" || slices.Contains(d.ifNames, ifName)
}

func (f *leaseFinder) remove(ctx context.Context) ([]Leftover, error) {
	if f.sources.kept || f.routes.kept {
		return nil, nil
	}
	dirs, err := f.dirs()
	errs := []error{err}
	var list []Leftover
	for _, dir := range dirs {
		var leases []lease.Lease
		for _, l := range f.found {
			if l.dir.Dir() == dir.Dir() {
				leases = append(leases, l.Lease)
			}
		}
		if len(leases) == 0 {
			continue
		}
		removed, err := dir.Remove(ctx, leases)
		for _, l := range removed {
			list = append(list, ownLease{l, dir}.leftover())
		}
		errs = append(errs, err)
	}
	return list, errors.Join(errs...)
}
