package cleanup

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

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/smallfile"
)

// leaseFinder looks for host-local's leases: files named by an address that hold a container ID and an interface.
type leaseFinder struct {
	*search
	found []lease
}

// leaseDir is the directory of one network.
type leaseDir struct {
	path    string
	network string
	ifNames []string // the allocation's interfaces; nil means any
}

// lease is a file that is the allocation's, or that is nobody's: a crash between creating and writing a file
// leaves it empty, and its address lost to everybody.
type lease struct {
	dir  leaseDir
	addr string
}

func (l lease) path() string { return filepath.Join(l.dir.path, l.addr) }

func (l lease) leftover() Leftover {
	return Leftover{Kind: KindLease, Network: l.dir.network, Where: l.dir.path, Object: l.addr}
}

// maxLease has ample room for an ID and the name of an interface.
const maxLease = 4 << 10

// holder is what a lease says.
type holder struct{ id, ifName string }

func (f *leaseFinder) find(ctx context.Context) ([]Leftover, error) {
	var (
		list []Leftover
		errs []error
	)
	f.found = nil
	dirs, err := f.dirs()
	if err != nil {
		f.addresses.unsure = true
		errs = append(errs, err)
	}
	for _, dir := range dirs {
		leases, err := f.inDir(ctx, dir)
		if err != nil {
			f.addresses.unsure = true
			errs = append(errs, err)
		}
		f.found = append(f.found, leases...)
	}
	for _, l := range f.found {
		list = append(list, l.leftover())
	}
	return list, errors.Join(errs...)
}

// dirs are the directories in which the allocation can have leases.
func (f *leaseFinder) dirs() ([]leaseDir, error) {
	if len(f.attachments) == 0 {
		return allLeaseDirs()
	}
	var dirs []leaseDir
	for _, a := range f.attachments {
		if !isFileName(a.Network) {
			continue
		}
		for _, dataDir := range a.scope.dataDirs {
			path := filepath.Join(dataDir, a.Network)
			i := slices.IndexFunc(dirs, func(d leaseDir) bool { return d.path == path })
			if i < 0 {
				dirs = append(dirs, leaseDir{path: path, network: a.Network})
				i = len(dirs) - 1
			}
			dirs[i].ifNames = append(dirs[i].ifNames, a.IfName)
		}
	}
	return dirs, nil
}

// allLeaseDirs are the directories of all networks at host-local's default place.
func allLeaseDirs() ([]leaseDir, error) {
	var dirs []leaseDir
	entries, err := os.ReadDir(defaultDataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list networks with leases: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			dirs = append(dirs, leaseDir{path: filepath.Join(defaultDataDir, entry.Name()), network: entry.Name()})
		}
	}
	return dirs, nil
}

// inDir finds the leases of one directory, and learns who holds the other addresses.
func (f *leaseFinder) inDir(ctx context.Context, dir leaseDir) ([]lease, error) {
	entries, err := os.ReadDir(dir.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	var own, empty []lease
	for _, entry := range entries {
		addr, err := netip.ParseAddr(entry.Name())
		if err != nil || !entry.Type().IsRegular() {
			continue
		}
		l := lease{dir: dir, addr: entry.Name()}
		h, exists, err := readLease(l.path())
		switch {
		case err != nil:
			return own, err
		case !exists:
		case h.id == "":
			empty = append(empty, l)
		case h.id != f.target.ID:
			f.addresses.addForeign(addr)
		case dir.has(h.ifName):
			f.addresses.addOwn(addr, dir.network)
			own = append(own, l)
		}
	}
	if dir.ifNames == nil {
		return own, nil // a network that is not known to be the allocation's
	}
	empty, err = stillEmpty(ctx, dir, empty)
	return append(own, empty...), err
}

// has reports whether an interface is one of the allocation's. Old leases name none.
func (d leaseDir) has(ifName string) bool {
	return d.ifNames == nil || ifName == "" || slices.Contains(d.ifNames, ifName)
}

// readLease reads who holds a lease; the zero holder when the file is empty.
func readLease(path string) (h holder, exists bool, err error) {
	data, err := smallfile.ReadOwn(path, maxLease)
	if isNone(err) {
		return holder{}, false, nil
	}
	if err != nil {
		return holder{}, false, fmt.Errorf("read lease: %w", err)
	}
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return holder{id: strings.TrimSpace(id), ifName: strings.TrimSpace(ifName)}, true, nil
}

// isNone reports whether reading a file failed because it is gone or because no plugin can have written it.
func isNone(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrNotExist, smallfile.ErrNotRegular, smallfile.ErrTooLarge, unix.ELOOP},
		func(none error) bool { return errors.Is(err, none) })
}

// stillEmpty looks again at empty leases while nobody can be about to write them.
func stillEmpty(ctx context.Context, dir leaseDir, leases []lease) ([]lease, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	unlock, err := lockDir(ctx, dir.path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return leases, nil // whoever writes leases makes the lock first
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	return slices.DeleteFunc(leases, func(l lease) bool {
		h, exists, err := readLease(l.path())
		return err != nil || !exists || h != holder{}
	}), nil
}

func (f *leaseFinder) remove(ctx context.Context) ([]Leftover, error) {
	var (
		list []Leftover
		errs []error
	)
	if f.sources.kept {
		return nil, nil
	}
	dirs, err := f.dirs()
	errs = append(errs, err)
	for _, dir := range dirs {
		leases := slices.DeleteFunc(slices.Clone(f.found), func(l lease) bool { return l.dir.path != dir.path })
		if len(leases) == 0 {
			continue
		}
		removed, err := f.release(ctx, dir, leases)
		list = append(list, removed...)
		errs = append(errs, err)
	}
	return list, errors.Join(errs...)
}

// release removes leases of one directory, unless they changed hands since they were found.
func (f *leaseFinder) release(ctx context.Context, dir leaseDir, leases []lease) ([]Leftover, error) {
	unlock, err := lockDir(ctx, dir.path, os.O_RDONLY|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var (
		list []Leftover
		errs []error
	)
	for _, l := range leases {
		h, exists, err := readLease(l.path())
		if err == nil && exists && (h.id == "" || h.id == f.target.ID && dir.has(h.ifName)) {
			if err = os.Remove(l.path()); err == nil {
				list = append(list, l.leftover())
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("release lease: %w", err))
		}
	}
	return list, errors.Join(errs...)
}

// lockDir takes the lock that host-local takes on a network's directory.
func lockDir(ctx context.Context, dir string, flags int) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), flags|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, fmt.Errorf("lock leases: %w", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- flock(int(file.Fd())) }()
	select {
	case err = <-locked:
	case <-ctx.Done():
		err = context.Cause(ctx)
		go func() {
			<-locked
			file.Close()
		}()
		return nil, fmt.Errorf("lock leases of %q: %w", dir, err)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock leases of %q: %w", dir, err)
	}
	return func() { file.Close() }, nil
}

func flock(fd int) error {
	for {
		if err := unix.Flock(fd, unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}
