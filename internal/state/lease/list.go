package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
)

// Lease is one lease of a network.
type Lease struct {
	Addr netip.Addr
	// Owner is zero if the file is empty: its writer has crashed, or has not written it
	// yet.
	Owner Owner
}

// Networks returns the names of the networks with a lease directory in a data
// directory. "" stands for DefaultDataDir.
func Networks(dataDir string) ([]string, error) {
	if dataDir == "" {
		dataDir = DefaultDataDir
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list networks with leases: %w", err)
	}
	var networks []string
	for _, entry := range entries {
		if entry.IsDir() && isNetwork(entry.Name()) {
			networks = append(networks, entry.Name())
		}
	}
	return networks, nil
}

// Dir returns the directory of the leases.
func (s *Store) Dir() string { return s.dir }

// List returns all leases, sorted by address. It takes no lock and changes nothing.
// With an error, it returns the leases that could be read.
func (s *Store) List() ([]Lease, error) {
	names, err := s.names()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.SortFunc(names, netip.Addr.Compare)
	errs := []error{err}
	leases := make([]Lease, 0, len(names))
	for _, addr := range names {
		owner, ok, err := s.holder(addr)
		errs = append(errs, err)
		if ok {
			leases = append(leases, Lease{Addr: addr, Owner: owner})
		}
	}
	return leases, errors.Join(errs...)
}

// Abandoned returns those of the listed leases whose files are still empty. It holds
// the lock, so no program can be about to write them. It does not create a lock file:
// every program that writes leases does that first.
func (s *Store) Abandoned(ctx context.Context, leases []Lease) ([]Lease, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	lock, err := s.lockWith(ctx, 0)
	if err == nil {
		defer lock.unlock()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var empty []Lease
	var errs []error
	for _, l := range leases {
		owner, ok, err := s.holder(l.Addr)
		errs = append(errs, err)
		if ok && owner == (Owner{}) {
			empty = append(empty, Lease{Addr: l.Addr})
		}
	}
	return empty, errors.Join(errs...)
}

// Remove removes listed leases and returns those that it removed. It skips leases that
// have another owner by now.
func (s *Store) Remove(ctx context.Context, leases []Lease) (removed []Lease, err error) {
	lock, err := s.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.unlock()
	x := s.openIndex(lock)
	var errs []error
	for _, l := range leases {
		ok, err := x.removeListed(l)
		errs = append(errs, err)
		if ok {
			removed = append(removed, l)
		}
	}
	x.sign()
	return removed, errors.Join(errs...)
}

// removeListed removes a lease if it still has the listed owner, or none.
func (x *index) removeListed(l Lease) (bool, error) {
	owner, ok, err := x.holder(l.Addr)
	if err != nil || !ok || owner != l.Owner && owner != (Owner{}) {
		return false, err
	}
	if err := x.unlink(l.Addr); err != nil {
		return false, err
	}
	x.noteReleases(l.Addr)
	if addrs := x.addrs(l.Owner); slices.Contains(addrs, l.Addr) {
		x.set(l.Owner, slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a == l.Addr }))
	}
	return true, nil
}
