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

	"golang.org/x/sys/unix"
)

// bootAttribute is the extended attribute with the ID of a boot: of the one in which a
// lease was made, and, on the directory of a network, of the one in which the leases of
// earlier boots were reclaimed last. Other programs ignore it, and a lease file that
// another program creates does not have it.
const bootAttribute = "user.allocnet.boot"

// heirAttribute is the extended attribute with the container ID for which the address of a
// lease is held after a reboot, if that is not the owner's.
const heirAttribute = "user.allocnet.heir"

// InBoot returns the store for a boot of the host, given by its ID. Leases that it makes
// name this boot. The first Reserve, Release, Retain or Reclaim in a boot reclaims the leases that
// name an earlier boot, because their holders ended with it: see Reclaim. It does not touch
// leases that name no boot, which other programs have made.
//
// The result is for one operation.
func (s *Store) InBoot(id string) *Store {
	in := *s
	in.boot = id
	return &in
}

// Unmarked reports whether the file system could not store the boot of a lease that the
// store has made, and may survive a reboot. Such a lease is not reclaimed.
func (s *Store) Unmarked() bool { return s.unmarked && s.Survives() }

// Reclaim reclaims the leases that were made in earlier boots, so that their addresses are
// free for all programs. For the rest of this boot, it holds the addresses for their former
// owners: Reserve gives an owner that requests any address its former one, and gives that
// to others only if they request it or if no other address is free.
//
// A crash at any instant leaves each lease either as it was or reclaimed.
func (s *Store) Reclaim(ctx context.Context) error {
	lock, err := s.lockWith(ctx, 0)
	if errors.Is(err, fs.ErrNotExist) { // every program that writes leases creates the lock
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.unlock()
	x := s.openIndex(lock)
	if err := x.reclaim(); err != nil || !x.known {
		return err
	}
	return x.need()
}

// reclaim is Reclaim for a caller that holds the lock. The directory loses its signature if
// a lease is reclaimed.
func (x *index) reclaim() error {
	if x.boot == "" {
		return nil
	}
	switch last, err := bootOf(x.dir); {
	case err != nil, last == x.boot: // without attributes, no lease names a boot
		return ignoreUnsupported(err)
	}
	addrs, err := x.names()
	if err != nil {
		return err
	}
	var errs []error
	for _, addr := range addrs {
		if x.isDead(addr) {
			x.exact = false
			x.noteAll([]netip.Addr{addr}, formerly)
			errs = append(errs, x.retire(addr))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("reclaim leases of earlier boots: %w", err)
	}
	if err := x.dropOldFormer(); err != nil {
		return fmt.Errorf("reclaim leases of earlier boots: %w", err)
	}
	err = x.setBoot(x.dir)
	x.did("reclaimed")
	if err != nil {
		return fmt.Errorf("record the boot of leases: %w", err)
	}
	return nil
}

// isDead reports whether a lease names an earlier boot.
func (s *Store) isDead(addr netip.Addr) bool {
	if s.boot == "" {
		return false
	}
	id, err := bootOf(s.path(addr))
	return err == nil && id != "" && id != s.boot
}

// retire moves a lease of an earlier boot to the former leases of this one.
func (s *Store) retire(addr netip.Addr) error {
	owner, ok, err := s.holder(addr)
	if err != nil || !ok {
		return err
	}
	if owner == (Owner{}) {
		return unix.Unlink(s.path(addr)) // its writer has crashed
	}
	err = os.MkdirAll(s.formerDir(), 0o700)
	if err == nil {
		err = s.addFormer(heirOf(s.path(addr), owner), addr)
	}
	if err == nil {
		err = unix.Rename(s.path(addr), s.formerPath(addr))
		s.did("retire")
	}
	if errors.Is(err, unix.EXDEV) { // the network's directory is a mount point
		err = unix.Unlink(s.path(addr))
	}
	if err != nil {
		return fmt.Errorf("lease of %s: %w", addr, err)
	}
	return nil
}

// mark records the boot in a lease file that has no content yet.
func (x *index) mark(fd int) error {
	if x.boot == "" {
		return nil
	}
	err := unix.Fsetxattr(fd, bootAttribute, []byte(x.boot), 0)
	x.did("mark")
	x.unmarked = x.unmarked || isUnsupported(err)
	return ignoreUnsupported(err)
}

// Mark records the boot in leases that another program, host-local, has made for the owner.
// It skips addresses that the owner does not have.
func (s *Store) Mark(ctx context.Context, owner Owner, addrs []netip.Addr) error {
	lock, err := s.lockWith(ctx, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.unlock()
	var errs []error
	for _, addr := range addrs {
		holder, ok, err := s.holder(addr)
		if ok && err == nil && holder == owner {
			err = s.setBoot(s.path(addr))
			s.unmarked = s.unmarked || isUnsupported(err)
			err = ignoreUnsupported(err)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record the boot of lease %s: %w", addr, err))
		}
	}
	return errors.Join(errs...)
}

// Former leases are files <data directory>/.allocnet/.former/<network>/<boot>/<address>, of
// which <boot> is the one that reclaimed them. The files are the reclaimed leases.
// Symbolic links in the same directory have the addresses of each former owner, as in the
// index. They may have more addresses than there are files.

func (s *Store) formerNetwork() string {
	return filepath.Join(filepath.Dir(s.links), ".former", s.network)
}

func (s *Store) formerDir() string { return s.formerNetwork() + "/" + s.boot }

func (s *Store) formerPath(addr netip.Addr) string { return s.formerDir() + "/" + addr.String() }

// formerLink returns the path of the link with an owner's former addresses.
func (s *Store) formerLink(owner Owner) string {
	return s.formerDir() + "/" + filepath.Base(s.link(owner))
}

// addFormer adds an address to the link of an owner.
func (s *Store) addFormer(owner Owner, addr netip.Addr) error {
	link := s.formerLink(owner)
	addrs := parseAddrs(readlink(link))
	if slices.Contains(addrs, addr) {
		return nil
	}
	err := relink(link, append(addrs, addr))
	s.did("note former owner")
	return err
}

// Former returns the addresses that are held for an owner. It uses no lock.
func (s *Store) Former(owner Owner) []netip.Addr {
	if s.boot == "" {
		return nil
	}
	return slices.DeleteFunc(parseAddrs(readlink(s.formerLink(owner))), func(addr netip.Addr) bool {
		return !s.isHeldFor(addr, owner)
	})
}

// HoldFor makes a later Reclaim hold an address of the owner for another container ID: that
// of the allocation which has taken the owner's network. It takes no lock, because the
// caller keeps the owner from releasing the address meanwhile.
func (s *Store) HoldFor(owner Owner, addr netip.Addr, id string) error {
	if holder, ok, err := s.holder(addr); err != nil || !ok || holder != owner {
		return errors.Join(fmt.Errorf("address %s: %w", addr, ErrNotHeld), err)
	}
	return ignoreUnsupported(s.setAttribute(s.path(addr), heirAttribute, id))
}

// heirOf returns the owner for whom the address of a lease file is held.
func heirOf(path string, owner Owner) Owner {
	if id, err := attribute(path, heirAttribute); err == nil && id != "" {
		owner.ID = id
	}
	return owner
}

// Survives reports whether the leases may survive a reboot.
func (s *Store) Survives() bool { return !isVolatile(s.dir) }

// hasFormer reports whether there may be addresses that are held.
func (s *Store) hasFormer() bool {
	return s.boot != "" && unix.Access(s.formerDir(), unix.F_OK) == nil
}

// isHeld reports whether an address is held for a former owner.
func (s *Store) isHeld(addr netip.Addr) bool {
	return unix.Access(s.formerPath(addr), unix.F_OK) == nil
}

// isHeldFor reports whether an address is held for an owner.
func (s *Store) isHeldFor(addr netip.Addr, owner Owner) bool {
	content, err := readLease(s.formerPath(addr))
	return err == nil && heirOf(s.formerPath(addr), parseOwner(content)) == owner
}

// endHold ends holding an address that was leased to another owner than the former one. If
// it cannot be removed, it stays held, which only means that other owners get it last.
func (s *Store) endHold(addr netip.Addr, owner Owner) {
	if !s.isHeld(addr) {
		return
	}
	if !s.isHeldFor(addr, owner) {
		_ = unix.Unlink(s.formerPath(addr))
		s.did("end hold")
	}
}

// dropOldFormer removes the former leases of earlier boots.
func (s *Store) dropOldFormer() error {
	entries, err := os.ReadDir(s.formerNetwork())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, entry := range entries {
		if entry.Name() != s.boot {
			errs = append(errs, os.RemoveAll(s.formerNetwork()+"/"+entry.Name()))
			s.did("drop former leases")
		}
	}
	return errors.Join(errs...)
}

// bootOf returns the boot that a file or directory names, or "". The error is ENOTSUP if
// the file system has no such attributes.
func bootOf(path string) (string, error) { return attribute(path, bootAttribute) }

// attribute returns the value of an extended attribute, or "" if there is none.
func attribute(path, name string) (string, error) {
	var buffer [256]byte
	n, err := unix.Lgetxattr(path, name, buffer[:])
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ERANGE):
		return "", nil
	case err != nil:
		return "", err
	}
	return string(buffer[:n]), nil
}

// setBoot makes a file or directory name the boot of the store.
func (s *Store) setBoot(path string) error { return s.setAttribute(path, bootAttribute, s.boot) }

func (s *Store) setAttribute(path, name, value string) error {
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsetxattr(fd, name, []byte(value), 0), unix.Close(fd))
}

func isUnsupported(err error) bool { return errors.Is(err, unix.ENOTSUP) }

func ignoreUnsupported(err error) error {
	if isUnsupported(err) {
		return nil
	}
	return err
}

// isVolatile reports whether a directory does not survive a reboot.
func isVolatile(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && (stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC)
}
