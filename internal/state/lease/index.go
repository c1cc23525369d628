package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// signature is the modification time of a directory whose index and times of last uses are
// complete. No clock returns this time. A file system without nanosecond timestamps cannot
// store it; there, the index is never used.
var signature = unix.Timespec{Sec: 946684800, Nsec: 10555592}

// indexSignature is the signature of versions that store no last uses.
var indexSignature = unix.Timespec{Sec: 946684800, Nsec: 10555591}

// index is the mapping of owners to addresses. It is used while the lock is held.
type index struct {
	*Store
	lock *dirLock
	// known reports that the times of the last uses are complete: no other program has changed
	// the directory since it was signed.
	known bool
	// exact reports that the links match the leases, so that the directory may be
	// signed.
	exact bool
	// all has the leases of all owners if they were read, else nil.
	all map[Owner][]netip.Addr
	// unread joins the errors of leases that could not be read.
	unread error
}

// openIndex checks the signature of the directory.
func (s *Store) openIndex(lock *dirLock) *index {
	x := &index{Store: s, lock: lock}
	var dir, links unix.Stat_t
	if unix.Stat(s.dir, &dir) != nil || unix.Stat(s.links, &links) != nil {
		return x
	}
	x.known = dir.Mtim == signature
	x.exact = x.known || dir.Mtim == indexSignature && x.noteUnknown()
	return x
}

// sign signs the directory if the index is exact. It must be the last change.
func (x *index) sign() {
	if x.exact {
		x.touch(signature)
		x.did("sign")
	}
}

func (s *Store) touch(mtime unix.Timespec) {
	omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, s.dir, []unix.Timespec{omit, mtime}, 0)
}

// link returns the path of the link with an owner's addresses. It is a hash, because
// the ID may contain any characters.
func (s *Store) link(owner Owner) string {
	sum := sha256.Sum256([]byte(owner.text()))
	return s.links + "/" + hex.EncodeToString(sum[:16])
}

// addrs returns the addresses of an owner according to the index.
func (x *index) addrs(owner Owner) []netip.Addr {
	if x.all != nil {
		return x.all[owner]
	}
	return parseAddrs(readlink(x.link(owner)))
}

// readlink returns the target of a link, or "" if there is none.
func readlink(link string) string {
	for size := 128; size <= unix.PathMax; size *= 2 { // 128 bytes hold a few addresses
		buffer := make([]byte, size)
		n, err := unix.Readlink(link, buffer)
		if err != nil {
			return ""
		}
		if n < size || size == unix.PathMax {
			return string(buffer[:n])
		}
	}
	return ""
}

// set replaces the owner's addresses in the index.
func (x *index) set(owner Owner, addrs []netip.Addr) {
	if x.all != nil {
		x.all[owner] = addrs
	}
	if !x.exact {
		return
	}
	x.exact = relink(x.link(owner), addrs) == nil
	x.did("index")
}

// relink replaces a link, or removes it if there are no addresses.
func relink(link string, addrs []netip.Addr) error {
	if len(addrs) > 0 {
		if err := unix.Symlink(formatAddrs(addrs), link); !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if err := unix.Unlink(link); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if len(addrs) == 0 {
		return nil
	}
	return unix.Symlink(formatAddrs(addrs), link)
}

// need rebuilds the index unless it is exact.
func (x *index) need() error {
	if x.exact {
		return nil
	}
	return x.rebuild()
}

// rebuild reads all leases, removes the empty ones, updates the links and signs the
// directory. If a lease cannot be read or a link cannot be written, the index stays
// inexact.
func (x *index) rebuild() error {
	x.exact = false
	x.touch(unix.Timespec{Nsec: unix.UTIME_NOW})
	if err := x.walk(); err != nil {
		return err
	}
	x.exact = x.relinkAll() == nil && x.unread == nil && (x.known || x.noteUnknown())
	x.did("rebuild")
	x.sign()
	return nil
}

// walk reads all leases.
func (x *index) walk() error {
	names, err := x.names()
	if err != nil {
		return err
	}
	x.all = map[Owner][]netip.Addr{}
	for _, addr := range names {
		owner, ok, err := x.holder(addr)
		switch {
		case ok && owner == Owner{}:
			err = x.removeEmpty(addr)
		case ok:
			x.all[owner] = append(x.all[owner], addr)
		}
		x.unread = errors.Join(x.unread, err)
	}
	return nil
}

// relinkAll updates all links from x.all. It does not touch links that are correct.
func (x *index) relinkAll() error {
	if err := os.MkdirAll(x.links, 0o700); err != nil {
		return err
	}
	want := make(map[string]string, len(x.all))
	for owner, addrs := range x.all {
		want[x.link(owner)] = formatAddrs(addrs)
	}
	have, err := os.ReadDir(x.links)
	if err != nil {
		return err
	}
	for _, entry := range have {
		link := x.links + "/" + entry.Name()
		if target, err := os.Readlink(link); err == nil && target == want[link] {
			delete(want, link)
			continue
		}
		if err := os.RemoveAll(link); err != nil {
			return err
		}
		x.did("unlink")
	}
	for link, target := range want {
		if err := unix.Symlink(target, link); err != nil {
			return err
		}
		x.did("link")
	}
	return nil
}

func formatAddrs(addrs []netip.Addr) string {
	sorted := slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	text := make([]string, len(sorted))
	for i, addr := range sorted {
		text[i] = addr.String()
	}
	return strings.Join(text, " ")
}

func parseAddrs(text string) []netip.Addr {
	var addrs []netip.Addr
	for field := range strings.FieldsSeq(text) {
		if addr, ok := parseName(field); ok {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
