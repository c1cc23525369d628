package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// These functions make the plain system calls, without the checks for pipes and
// terminals in package os, which double the number of calls of an operation.

const lineBreak = "\r\n"

// text returns the content of a lease file of the owner.
func (o Owner) text() string {
	if o.IfName == "" {
		return o.ID
	}
	return o.ID + lineBreak + o.IfName
}

// parseOwner parses the content of a lease file, which an operator may have edited. Old
// files contain only the container ID. An empty file, left by a crash of its writer,
// results in the zero Owner.
func parseOwner(content string) Owner {
	id, ifName, _ := strings.Cut(strings.TrimSpace(content), "\n")
	return Owner{ID: strings.TrimSpace(id), IfName: strings.TrimSpace(ifName)}
}

// parseName parses the name of a lease file. It returns false for other files.
func parseName(name string) (netip.Addr, bool) {
	if name == "" || !strings.ContainsRune("0123456789abcdef:", rune(name[0])) {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(name)
	return addr, err == nil && addr.Zone() == "" && !addr.Is4In6() && addr.String() == name
}

func (s *Store) path(addr netip.Addr) string { return s.dir + "/" + addr.String() }

// errNoLease: no plugin can have written the file.
var errNoLease = errors.New("not a lease")

// holder returns the owner of an address. ok reports whether there is a lease.
func (s *Store) holder(addr netip.Addr) (owner Owner, ok bool, err error) {
	content, err := readLease(s.path(addr))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNoLease), errors.Is(err, unix.ELOOP):
		return Owner{}, false, nil
	case err != nil:
		return Owner{}, false, fmt.Errorf("read lease of %s: %w", addr, err)
	}
	return parseOwner(content), true, nil
}

// names returns the leased addresses.
func (s *Store) names() ([]netip.Addr, error) {
	s.did("list leases")
	dir, err := os.OpenFile(s.dir, os.O_RDONLY|unix.O_DIRECTORY, 0) // does not wait for a pipe
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(names))
	for _, name := range names {
		if addr, ok := parseName(name); ok {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// create creates a lease. It returns false if there is one already.
func (x *index) create(addr netip.Addr, owner Owner) (bool, error) {
	path := x.path(addr)
	fd, err := openFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if errors.Is(err, unix.EEXIST) {
		if !x.vacant(addr) {
			return false, nil
		}
		if err := x.removeEmpty(addr); err != nil {
			return false, err
		}
		fd, err = openFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	}
	if err != nil {
		return false, fmt.Errorf("create lease of %s: %w", addr, statedir.Unwritable(path, err))
	}
	x.did("create lease")
	err = x.mark(fd) // first, because a file without content counts for nothing
	if err == nil {
		err = writeAt(fd, owner.text())
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		undo := unix.Unlink(path)
		x.exact = x.exact && undo == nil
		return false, errors.Join(fmt.Errorf("write lease of %s: %w", addr, statedir.Unwritable(path, err)), undo)
	}
	x.did("write lease")
	return true, nil
}

// removeEmpty removes an empty lease file, left by a crash of its writer.
func (x *index) removeEmpty(addr netip.Addr) error {
	if err := unix.Unlink(x.path(addr)); err != nil {
		return fmt.Errorf("remove empty lease of %s: %w", addr, err)
	}
	x.did("remove empty lease")
	return nil
}

// remove removes a lease if it belongs to the owner.
func (s *Store) remove(addr netip.Addr, owner Owner) (bool, error) {
	if holder, ok, err := s.holder(addr); err != nil || !ok || holder != owner {
		return false, err
	}
	if err := s.unlink(addr); err != nil {
		return false, err
	}
	return true, nil
}

// unlink removes the file of a lease.
func (s *Store) unlink(addr netip.Addr) error {
	path := s.path(addr)
	if err := unix.Unlink(path); err != nil {
		return fmt.Errorf("remove lease of %s: %w", addr, statedir.Unwritable(path, err))
	}
	s.did("remove lease")
	return nil
}

// vacant reports whether an address is free: there is no lease file, or an empty one,
// left by a crash of its writer.
func (s *Store) vacant(addr netip.Addr) bool {
	var stat unix.Stat_t
	err := unix.Lstat(s.path(addr), &stat)
	if err != nil {
		return errors.Is(err, unix.ENOENT)
	}
	return stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Size == 0
}

// openFile opens a file. It does not follow symbolic links or wait for pipes.
func openFile(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func writeAt(fd int, text string) error {
	n, err := unix.Pwrite(fd, []byte(text), 0)
	if err == nil && n != len(text) {
		return unix.ENOSPC
	}
	return err
}

// readLease reads a regular file of at most maxFile bytes.
func readLease(path string) (string, error) {
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return "", err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Size > maxFile {
		return "", errNoLease
	}
	return readAll(fd)
}

func readFile(path string) (string, error) {
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readAll(fd)
}

// maxFile is far above the size of any lease file.
const maxFile = 4 << 10

// readAll reads a file, in one call if it is short. It stops after maxFile bytes.
func readAll(fd int) (string, error) {
	var content []byte
	buffer := make([]byte, 512)
	for len(content) < maxFile {
		n, err := unix.Read(fd, buffer)
		if err != nil {
			return "", err
		}
		content = append(content, buffer[:n]...)
		if n < len(buffer) {
			break
		}
	}
	return string(content), nil
}
