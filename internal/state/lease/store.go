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
	"unicode"

	"golang.org/x/sys/unix"
)

// DefaultDataDir is where the leases are if a configuration says nothing else.
const DefaultDataDir = "/var/lib/cni/networks"

// Owner holds leases: one interface of one container. IfName is empty in leases
// of an old format, which belong to the container as a whole.
type Owner struct{ ID, IfName string }

// Store is the leases of one network. It keeps nothing in memory and is safe for
// concurrent use, by other processes and by host-local as well.
type Store struct {
	network, dir, links string
	// hook is told of every step, and panics where a test wants a crash.
	hook func(step string)
}

// Open names a store; an empty data directory stands for DefaultDataDir. It makes
// nothing: the first Reserve does.
func Open(dataDir, network string) (*Store, error) {
	if !isNetwork(network) {
		return nil, fmt.Errorf("open leases: %q is no name of a network", network)
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

// Release gives back all leases of the owner, or, where it has none, those in the
// old format of its container. It succeeds when there are none.
//
// known may be all addresses that the owner got, for a directory whose index is
// not valid: if they are indeed the owner's, nothing else is looked at.
func (s *Store) Release(ctx context.Context, owner Owner, known ...netip.Addr) error {
	unlock, err := s.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	x := s.openIndex()
	if !x.exact && x.releaseKnown(owner, known) {
		return nil
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
	return err
}

// releaseEither removes the leases of the owner, or, where it has none, those in the
// old format of its container.
func (x *index) releaseEither(owner Owner) (n int, err error) {
	for _, o := range []Owner{owner, {ID: owner.ID}} {
		if n, err = x.release(o); n > 0 || err != nil {
			break
		}
	}
	return n, err
}

// edited reports whether another program wrote to a lease of the owner, so that the index
// differs from it: that leaves the directory's signature as it is. released is how many
// of the owner's leases were released.
func (x *index) edited(owner Owner, released int, known []netip.Addr) bool {
	if x.all != nil { // which was read from the leases
		return false
	}
	return !x.exact || released == 0 && slices.ContainsFunc(known, func(addr netip.Addr) bool {
		held, err := x.Holds(owner, addr)
		return held && err == nil
	})
}

// releaseKnown removes leases without the index, and reports whether all were the
// owner's.
func (s *Store) releaseKnown(owner Owner, known []netip.Addr) bool {
	all := len(known) > 0
	for _, addr := range known {
		ok, err := s.remove(addr, owner)
		if !ok && err == nil {
			ok, err = s.remove(addr, Owner{ID: owner.ID})
		}
		all = all && ok && err == nil
	}
	return all
}

// release removes what the index says is the owner's.
func (x *index) release(owner Owner) (n int, err error) {
	addrs := x.addrs(owner)
	if len(addrs) == 0 {
		return 0, nil
	}
	var left []netip.Addr
	for _, addr := range addrs {
		ok, removeErr := x.remove(addr, owner)
		if ok {
			n++
		}
		if removeErr != nil {
			left, err = append(left, addr), errors.Join(err, removeErr)
		}
		x.exact = x.exact && (ok || removeErr != nil)
	}
	x.set(owner, left)
	return n, err
}

// Lookup returns the addresses that the owner holds; where there are none, those
// in the old format of its container.
func (s *Store) Lookup(ctx context.Context, owner Owner) ([]netip.Addr, error) {
	unlock, err := s.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	x := s.openIndex()
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

// held is what the index says is the owner's, as far as the leases agree. If one
// does not, the index is not exact.
func (x *index) held(owner Owner) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(x.addrs(owner)), func(addr netip.Addr) bool {
		holder, ok, err := x.holder(addr)
		differs := err == nil && (!ok || holder != owner)
		x.exact = x.exact && !differs
		return differs
	})
}

// Holds reports whether one address is the owner's, without lock or index.
func (s *Store) Holds(owner Owner, addr netip.Addr) (bool, error) {
	holder, ok, err := s.holder(addr)
	return ok && (holder == owner || holder == Owner{ID: owner.ID}), err
}

// Retain gives back the leases of all owners except the valid ones and those for
// which spare returns true, and returns the addresses of these leases. spare may be
// nil; it gets an owner and the owner's addresses. A lease in the old format, whose
// owner has no IfName, is valid if its container has any valid owner.
func (s *Store) Retain(ctx context.Context, valid []Owner, spare func(Owner, []netip.Addr) bool) ([]netip.Addr, error) {
	unlock, err := s.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	keep := make(map[Owner]bool, 2*len(valid))
	for _, o := range valid {
		keep[o], keep[Owner{ID: o.ID}] = true, true
	}
	// Not by the links, which say nothing of a lease that somebody made by hand.
	x := s.openIndex()
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

// Available reports whether Reserve can serve a new owner: ErrExhausted when it
// cannot for want of addresses. It changes nothing, and takes no lock.
func (s *Store) Available(sets []RangeSet) error {
	if err := s.writable(); err != nil {
		return err
	}
	for i, set := range sets {
		last, _ := readFile(s.lastPath(i))
		_, err := s.find(set, parseLast(last), func(addr netip.Addr) (bool, error) { return s.vacant(addr), nil })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("range set %d: %w", i, err)
		}
	}
	return nil
}

// writable reports whether leases can be made where the directory is, or where it
// will be.
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

// validate keeps out what would not be read back as the same owner.
func (o Owner) validate() error {
	if o.ID == "" || o.IfName == "" || strings.ContainsFunc(o.ID+o.IfName, unicode.IsSpace) {
		return fmt.Errorf("container %q, interface %q: not the name of an owner", o.ID, o.IfName)
	}
	return nil
}
