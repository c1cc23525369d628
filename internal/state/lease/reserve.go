package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// Request requests one address of a range set: Address, or any address if that is zero.
type Request struct {
	Set     RangeSet
	Address netip.Addr
	// InUse returns the owner of an address that has no lease in this store, "" if it is free.
	// Such an address is not leased. A nil InUse stands for a host that cannot be asked.
	InUse func(netip.Addr) (by string, err error)
	// LastUse is where Reserve stores when the address was in use before: when it was released last, the zero
	// time for never, and the present if that is not known. nil if the caller does not ask.
	LastUse *time.Time
}

func (r *Request) inUse(addr netip.Addr) (by string, err error) {
	if r.InUse == nil {
		return "", nil
	}
	return r.InUse(addr)
}

// Reserve leases one address per request to the owner, or none at all. The index of a
// request identifies its range set in the files with the last reserved addresses.
//
// The error is ErrDuplicate if the owner already has an address of the same set and
// requests any; ErrTaken or ErrNotInRange if a requested address is not available; and
// ErrExhausted if no address is free. After an error, no lease of the owner has changed.
func (s *Store) Reserve(ctx context.Context, owner Owner, requests []Request) ([]netip.Addr, error) {
	return s.reserve(ctx, owner, func(r *reservation) error {
		for i, request := range requests {
			if err := r.reserve(i, request); err != nil {
				return fmt.Errorf("allocate from range set %d: %w", i, err)
			}
		}
		r.storeLastUses(requests, r.taken)
		return nil
	})
}

// Restore leases addresses to the owner whose leases were lost, or none of them. Unlike
// Reserve, it does not change which addresses new owners get next. The error is ErrTaken if
// one of the addresses is leased, also to the owner itself.
func (s *Store) Restore(ctx context.Context, owner Owner, addrs ...netip.Addr) error {
	_, err := s.reserve(ctx, owner, func(r *reservation) error {
		for _, addr := range addrs {
			ok, err := r.create(addr, owner)
			if err == nil && !ok {
				err = fmt.Errorf("address %s of network %q: %w", addr, s.network, ErrTaken)
			}
			if err != nil {
				return err
			}
			r.taken = append(r.taken, addr)
		}
		return nil
	})
	return err
}

// reserve calls take with a reservation, and undoes it if take returns an error.
func (s *Store) reserve(ctx context.Context, owner Owner, take func(*reservation) error) ([]netip.Addr, error) {
	if err := owner.validate(); err != nil {
		return nil, err
	}
	x, err := s.openNew(ctx)
	if err != nil {
		return nil, err
	}
	defer x.lock.unlock()
	if err := x.reclaim(); err != nil {
		return nil, err
	}
	if err := x.need(); err != nil {
		return nil, err
	}
	r := reservation{index: x, owner: owner, own: x.held(owner), old: x.held(Owner{ID: owner.ID}), holds: s.hasFormer()}
	if r.holds {
		r.former = s.Former(owner)
	}
	if err := take(&r); err != nil {
		err = errors.Join(err, r.undo())
		x.sign()
		return nil, err
	}
	x.set(owner, slices.Concat(r.own, r.taken))
	x.sign()
	if r.holds {
		for _, addr := range r.taken {
			r.endHold(addr, owner)
		}
	}
	return r.taken, nil
}

// openNew locks the directory and opens its index. It creates the directory if that does not exist. Nothing was in
// use before in a directory that it has created, unless another one had an index there.
func (s *Store) openNew(ctx context.Context) (*index, error) {
	lock, err := s.lock(ctx)
	isNew := errors.Is(err, fs.ErrNotExist)
	if isNew {
		isNew = errors.Is(unix.Access(s.links, unix.F_OK), unix.ENOENT)
		if err := os.MkdirAll(s.dir, 0o755); err != nil {
			return nil, fmt.Errorf("make leases of network %q: %w", s.network, statedir.Unwritable(s.dir, err))
		}
		lock, err = s.lock(ctx)
	}
	if err != nil {
		return nil, err
	}
	x := s.openIndex(lock)
	x.known = x.known || isNew
	return x, nil
}

// reservation is a running Reserve.
type reservation struct {
	*index
	owner    Owner
	own, old []netip.Addr // earlier leases of the owner, and in the old format of its container
	holds    bool         // whether addresses are held for former owners; see Store.Reclaim
	former   []netip.Addr // those that are held for this owner
	taken    []netip.Addr
}

func (r *reservation) reserve(i int, request Request) error {
	fd, err := openLast(r.lastPath(i))
	if err != nil {
		return fmt.Errorf("open last reserved address in %q: %w", r.lastPath(i), statedir.Unwritable(r.lastPath(i), err))
	}
	defer unix.Close(fd)
	last, err := readAll(fd)
	if err != nil {
		return fmt.Errorf("read last reserved address in %q: %w", r.lastPath(i), err)
	}
	var addr netip.Addr
	if request.Address.IsValid() {
		addr, err = r.one(request)
	} else {
		addr, err = r.any(request, parseLast(last))
	}
	if err != nil {
		return err
	}
	r.taken = append(r.taken, addr)
	if slices.Contains(r.former, addr) {
		return nil // the search for new owners would walk through addresses that are held
	}
	if err := overwrite(fd, last, addr.String()); err != nil {
		return fmt.Errorf("write last reserved address: %w", statedir.Unwritable(r.lastPath(i), err))
	}
	r.did("write last")
	return nil
}

// one leases the requested address.
func (r *reservation) one(request Request) (netip.Addr, error) {
	addr, set := request.Address, request.Set
	if !set.Contains(addr) {
		return addr, fmt.Errorf("requested IP address %s is not in range set %s: %w", addr, set, ErrNotInRange)
	}
	if !set.leasable(addr) {
		return addr, fmt.Errorf("requested ip %s is subnet's gateway: %w", addr, ErrNotInRange)
	}
	by, err := request.inUse(addr)
	if err == nil && by != "" {
		err = fmt.Errorf("requested IP address %s is not available in range set %s: %w: %s has it", addr, set, ErrTaken, by)
	}
	if err != nil {
		return addr, err
	}
	ok, err := r.create(addr, r.owner)
	if err == nil && !ok {
		err = fmt.Errorf("requested IP address %s is not available in range set %s: %w", addr, set, ErrTaken)
	}
	return addr, err
}

// any leases the next free address.
func (r *reservation) any(request Request, last netip.Addr) (netip.Addr, error) {
	set := request.Set
	create := func(addr netip.Addr) (bool, error) {
		if by, err := request.inUse(addr); by != "" || err != nil {
			return false, err
		}
		return r.create(addr, r.owner)
	}
	for _, addr := range slices.Concat(r.own, r.old) {
		if set.Contains(addr) {
			return addr, fmt.Errorf("%s has been allocated to %s, %w", addr, r.owner.ID, ErrDuplicate)
		}
	}
	for _, addr := range r.former {
		if !set.leasable(addr) {
			continue
		}
		if ok, err := create(addr); ok || err != nil {
			return addr, err
		}
	}
	held := false
	addr, err := r.find(set, last, func(addr netip.Addr) (bool, error) {
		if r.holds && r.isHeld(addr) {
			held = true
			return false, nil
		}
		return create(addr)
	})
	if held && errors.Is(err, ErrExhausted) {
		return r.find(set, last, create)
	}
	return addr, err
}

// undo releases the addresses that were leased so far.
func (r *reservation) undo() error {
	var errs []error
	for _, addr := range r.taken {
		_, err := r.remove(addr, r.owner)
		r.exact = r.exact && err == nil
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// maxGuesses is how many addresses are tried one by one. After that, all names are read
// at once, which is cheaper if a range is nearly full.
const maxGuesses = 8

// find returns the first address after last that try accepts.
func (s *Store) find(set RangeSet, last netip.Addr, try func(netip.Addr) (bool, error)) (netip.Addr, error) {
	var leased map[netip.Addr]bool
	n := 0
	for addr := range set.after(last) {
		if n == maxGuesses {
			names, err := s.names()
			if err != nil {
				return addr, err
			}
			leased = make(map[netip.Addr]bool, len(names))
			for _, name := range names {
				leased[name] = true
			}
		}
		n++
		if leased[addr] {
			continue
		}
		if ok, err := try(addr); ok || err != nil {
			return addr, err
		}
	}
	// The remaining candidates are empty lease files.
	for addr := range leased {
		if !set.leasable(addr) {
			continue
		}
		if ok, err := try(addr); ok || err != nil {
			return addr, err
		}
	}
	return netip.Addr{}, fmt.Errorf("network %q: %w in range set: %s", s.network, ErrExhausted, set)
}

func (s *Store) lastPath(i int) string { return s.dir + "/last_reserved_ip." + strconv.Itoa(i) }

// openLast opens a file with a last reserved address. It refuses a file with several
// hard links, because a write would change another file.
func openLast(path string) (int, error) {
	fd, err := openFile(path, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return -1, err
	}
	var stat unix.Stat_t
	if err = unix.Fstat(fd, &stat); err == nil && stat.Nlink > 1 {
		err = errHardLink
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// parseLast parses the last reserved address; zero if it is unknown.
func parseLast(text string) netip.Addr {
	addr, _ := parseName(strings.TrimSpace(text))
	return addr
}

func overwrite(fd int, old, text string) error {
	if len(text) < len(old) {
		if err := unix.Ftruncate(fd, 0); err != nil {
			return err
		}
	}
	return writeAt(fd, text)
}
