package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// DefaultDataDir is the data directory if the configuration has none.
const DefaultDataDir = "/var/lib/cni/networks"

// Owner is the owner of leases: one interface of one container. IfName is empty in
// leases of an old format, which belong to the whole container.
type Owner struct{ ID, IfName string }

// Store has the leases of one network. It keeps nothing in memory. It is safe for
// concurrent use, also by other processes and by host-local.
type Store struct {
	network, dir, links string
	boot                string // see InBoot; "" if leases name no boot
	unmarked            bool   // see Unmarked
	// hook is called after every step. A test makes it panic to simulate a crash.
	hook func(step string)
	now  func() time.Time // of a test; nil for time.Now
}

// Open returns the store of a network; "" stands for DefaultDataDir. It creates no
// files; the first Reserve does.
func Open(dataDir, network string) (*Store, error) {
	if !isNetwork(network) {
		return nil, fmt.Errorf("open leases: %q is not a network name", network)
	}
	if dataDir == "" {
		dataDir = DefaultDataDir
	}
	return &Store{
		network: network,
		dir:     filepath.Join(dataDir, network),
		links:   filepath.Join(dataDir, ".allocnet", network),
	}, nil
}

// isNetwork reports whether a name can be that of a network's directory.
func isNetwork(name string) bool {
	return name != "" && name[0] != '.' && !strings.ContainsAny(name, "/\x00")
}

func (s *Store) did(step string) {
	if s.hook != nil {
		s.hook(step)
	}
}

// Release releases all leases of the owner. If the owner has none, it releases those in
// the old format of its container. It succeeds if there are none.
//
// known may have all addresses of the owner. If the index is not valid and these
// addresses all belong to the owner, Release reads no other leases.
func (s *Store) Release(ctx context.Context, owner Owner, known ...netip.Addr) error {
	lock, err := s.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.unlock()
	x := s.openIndex(lock)
	reclaimErr := x.reclaim() // does not keep the owner from releasing its leases
	if !x.exact && x.releaseKnown(owner, known) {
		return reclaimErr
	}
	if err := x.need(); err != nil {
		return err
	}
	n, err := x.releaseEither(owner)
	if err == nil && x.edited(owner, n, known) {
		if err := x.rebuild(); err != nil {
			return err
		}
		_, err = x.releaseEither(owner)
	}
	x.sign()
	return errors.Join(err, reclaimErr)
}

// releaseEither releases the leases of the owner, or if it has none, those in the old
// format of its container.
func (x *index) releaseEither(owner Owner) (n int, err error) {
	for _, o := range []Owner{owner, {ID: owner.ID}} {
		if n, err = x.release(o); n > 0 || err != nil {
			break
		}
	}
	return n, err
}

// edited reports whether another program has edited a lease file of the owner, so that
// the index does not match it. An edit does not change the signature of the directory.
// released is the number of the owner's leases that were released.
func (x *index) edited(owner Owner, released int, known []netip.Addr) bool {
	if x.all != nil { // the leases themselves were read
		return false
	}
	return !x.exact || released == 0 && slices.ContainsFunc(known, func(addr netip.Addr) bool {
		held, err := x.Holds(owner, addr)
		return held && err == nil
	})
}

// releaseKnown releases leases without the index. It reports whether all of them
// belonged to the owner.
func (x *index) releaseKnown(owner Owner, known []netip.Addr) bool {
	all := len(known) > 0
	var removed []netip.Addr
	for _, addr := range known {
		ok, err := x.remove(addr, owner)
		if !ok && err == nil {
			ok, err = x.remove(addr, Owner{ID: owner.ID})
		}
		if ok {
			removed = append(removed, addr)
		}
		all = all && ok && err == nil
	}
	x.noteReleases(removed...)
	return all
}

// release releases the leases that the owner has according to the index.
func (x *index) release(owner Owner) (n int, err error) {
	addrs := x.addrs(owner)
	if len(addrs) == 0 {
		return 0, nil
	}
	var removed, left []netip.Addr
	for _, addr := range addrs {
		ok, removeErr := x.remove(addr, owner)
		if ok {
			removed = append(removed, addr)
		}
		if removeErr != nil {
			left, err = append(left, addr), errors.Join(err, removeErr)
		}
		x.exact = x.exact && (ok || removeErr != nil)
	}
	x.noteReleases(removed...)
	x.set(owner, left)
	return len(removed), err
}

// Lookup returns the addresses of the owner. If it has none, Lookup returns those in
// the old format of its container.
func (s *Store) Lookup(ctx context.Context, owner Owner) ([]netip.Addr, error) {
	lock, err := s.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.unlock()
	x := s.openIndex(lock)
	if err := x.need(); err != nil {
		return nil, err
	}
	addrs := x.heldByEither(owner)
	if !x.exact && x.all == nil {
		if err := x.rebuild(); err != nil {
			return nil, err
		}
		addrs = x.heldByEither(owner)
	}
	return addrs, nil
}

func (x *index) heldByEither(owner Owner) []netip.Addr {
	if addrs := x.held(owner); len(addrs) > 0 {
		return addrs
	}
	return x.held(Owner{ID: owner.ID})
}

// held returns the addresses of the owner according to the index that the lease files
// confirm. If one of them differs, the index is not exact.
func (x *index) held(owner Owner) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(x.addrs(owner)), func(addr netip.Addr) bool {
		holder, ok, err := x.holder(addr)
		differs := err == nil && (!ok || holder != owner)
		x.exact = x.exact && !differs
		return differs
	})
}

// Holds reports whether an address belongs to the owner. It uses neither the lock nor
// the index.
func (s *Store) Holds(owner Owner, addr netip.Addr) (bool, error) {
	holder, ok, err := s.holder(addr)
	return ok && (holder == owner || holder == Owner{ID: owner.ID}), err
}

// Retain releases the leases of all owners except the valid ones and those for which
// spare returns true, and returns the released addresses. spare may be nil; it gets an
// owner and the owner's addresses. A lease in the old format, whose owner has no
// IfName, is valid if its container has any valid owner.
func (s *Store) Retain(ctx context.Context, valid []Owner, spare func(Owner, []netip.Addr) bool) ([]netip.Addr, error) {
	lock, err := s.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.unlock()
	keep := make(map[Owner]bool, 2*len(valid))
	for _, o := range valid {
		keep[o], keep[Owner{ID: o.ID}] = true, true
	}
	x := s.openIndex(lock)
	if err := x.reclaim(); err != nil {
		return nil, err
	}
	// Read all leases, because the links lack leases that were created by hand.
	if err := x.rebuild(); err != nil {
		return nil, err
	}
	var removed []netip.Addr
	errs := []error{x.unread}
	for owner, addrs := range x.all {
		if keep[owner] || spare != nil && spare(owner, addrs) {
			continue
		}
		_, err := x.release(owner)
		errs = append(errs, err)
		removed = append(removed, slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool {
			return slices.Contains(x.all[owner], addr)
		})...)
	}
	x.sign()
	slices.SortFunc(removed, netip.Addr.Compare)
	return removed, errors.Join(errs...)
}

// Available reports whether Reserve can serve a new owner. It returns ErrExhausted if
// no address is free. It changes nothing and takes no lock.
func (s *Store) Available(sets []RangeSet) error {
	if err := s.writable(); err != nil {
		return err
	}
	for i, set := range sets {
		last, _ := readFile(s.lastPath(i))
		_, err := s.find(set, parseLast(last), func(addr netip.Addr) (bool, error) { return s.vacant(addr) || s.isDead(addr), nil })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("range set %d: %w", i, err)
		}
	}
	return nil
}

// writable returns an error if leases cannot be created in the directory, or in the
// closest existing parent if it does not exist.
func (s *Store) writable() error {
	for dir := s.dir; ; dir = filepath.Dir(dir) {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		if errors.Is(err, fs.ErrNotExist) && dir != "/" && dir != "." {
			continue
		}
		if err == nil {
			var info fs.FileInfo
			if info, err = os.Stat(dir); err == nil && !info.IsDir() {
				err = unix.ENOTDIR
			}
		}
		if err != nil {
			return fmt.Errorf("write to %q: %w", dir, err)
		}
		return nil
	}
}

// validate rejects owners that parseOwner would not read back unchanged.
func (o Owner) validate() error {
	if o.ID == "" || o.IfName == "" || strings.ContainsFunc(o.ID+o.IfName, unicode.IsSpace) {
		return fmt.Errorf("container %q, interface %q: not a valid owner of leases", o.ID, o.IfName)
	}
	return nil
}
