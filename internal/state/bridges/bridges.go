// Package bridges records which bridges of the host a Setup has created. All others are the host's: they are neither
// created again, nor brought up, nor given another MAC.
package bridges

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/flock"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/smallfile"
)

// Store is the record of a state directory: a directory with a file for each bridge, with the index of the interface. It is safe for concurrent
// use, also by several processes. To a nil Store, all bridges are created ones.
type Store struct {
	dir     string
	usual   string // that of the default directory, in which the drop-in plugins record
	begun   atomic.Bool
	present func() (map[string]int, error) // see Begin
	created sync.Map                       // indexes of recorded bridges by name
}

// In returns the record in a state directory, which need not exist.
func In(stateDir string) *Store {
	return &Store{dir: filepath.Join(stateDir, "bridges"), usual: filepath.Join(names.DefaultStateDir, "bridges"), present: withAllocations}
}

// Begin begins the record. Bridges with ports of allocations count as created then: an earlier version recorded none.
func (s *Store) Begin() error {
	if s == nil || s.begun.Load() {
		return nil
	}
	_, err := os.Lstat(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = s.begin()
	}
	if err != nil {
		return fmt.Errorf("record of created bridges: %w", err)
	}
	s.begun.Store(true)
	return nil
}

func (s *Store) begin() error {
	all, err := s.present()
	if err != nil {
		return err
	}
	state := filepath.Dir(s.dir)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	draft, err := os.MkdirTemp(state, ".bridges-")
	if err != nil {
		return err
	}
	for name, index := range all {
		err = errors.Join(err, write(filepath.Join(draft, name), index))
	}
	if err == nil {
		err = os.Rename(draft, s.dir)
	}
	if err == nil {
		return nil
	}
	if _, there := os.Lstat(s.dir); there == nil { // another process has begun it
		err = nil
	}
	return errors.Join(err, os.RemoveAll(draft))
}

// withAllocations returns the bridges that have ports of allocations, with their indexes.
func withAllocations() (map[string]int, error) {
	links, err := retry.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	bridges := map[int]string{}
	for _, l := range links {
		if l.Type() == "bridge" {
			bridges[l.Attrs().Index] = l.Attrs().Name
		}
	}
	found := map[string]int{}
	for _, l := range links {
		_, owned := names.ParseOwner(l.Attrs().Alias)
		if name := bridges[l.Attrs().MasterIndex]; owned && name != "" {
			found[name] = l.Attrs().MasterIndex
		}
	}
	return found, nil
}

func write(path string, index int) error {
	return smallfile.WriteOwn(path, []byte(strconv.Itoa(index)))
}

// Add records a bridge: with index 0 before it is created, then with its index.
func (s *Store) Add(name string, index int) error {
	return s.record(context.Background(), name, func(put func(int) error) error { return put(index) })
}

// Create records the bridge that create makes, and keeps others from recording one meanwhile. create returns the index of
// the bridge; 0 if it has created none, which leaves the record as it was. undo deletes a bridge that cannot be recorded.
// If the process ends in between, the bridge counts as created. The caller has called Begin.
func (s *Store) Create(ctx context.Context, name string, create func() (index int, err error), undo func() error) error {
	if s == nil {
		_, err := create()
		return err
	}
	return s.record(ctx, name, func(put func(int) error) error {
		before, had, err := read(s.dir, name)
		had = had && err == nil // what cannot be read is replaced
		if err = put(0); err != nil {
			return err
		}
		index, err := create()
		if index != 0 {
			putErr := put(index)
			if putErr == nil {
				return err
			}
			undoErr := undo()
			if err = errors.Join(err, putErr, undoErr); undoErr != nil {
				return err
			}
		}
		if had {
			return errors.Join(err, put(before))
		}
		return errors.Join(err, os.Remove(filepath.Join(s.dir, name)))
	})
}

// record calls change, which records indexes of a bridge with put, while no other process does. Readers see whole records.
func (s *Store) record(ctx context.Context, name string, change func(put func(index int) error) error) error {
	if s == nil {
		return nil
	}
	if filepath.Base(name) != name || name == ".." || name == "." {
		return fmt.Errorf("record bridge %q: not the name of an interface", name)
	}
	fd, err := s.lock(ctx)
	if err != nil {
		return fmt.Errorf("record bridge %q: %w", name, err)
	}
	defer unix.Close(fd)
	return change(func(index int) error {
		draft := filepath.Join(s.dir, ":draft") // no interface has a colon in its name
		err := smallfile.ReplaceOwn(filepath.Join(s.dir, name), draft, []byte(strconv.Itoa(index)))
		if err != nil {
			return fmt.Errorf("record bridge %q: %w", name, err)
		}
		return nil
	})
}

// lock locks the directory, and creates it if another program has removed it since Begin. Closing the descriptor
// releases the lock.
func (s *Store) lock(ctx context.Context) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(s.dir, flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			fd, err = unix.Open(s.dir, flags, 0)
		}
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", s.dir, err)
	}
	if err = flock.Wait(ctx, fd, unix.LOCK_EX); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("lock %s: %w", s.dir, err)
	}
	return fd, nil
}

// read returns the index that a directory has of a bridge, if it has any.
func read(dir, name string) (index int, had bool, err error) {
	data, err := smallfile.ReadOwn(filepath.Join(dir, name), maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("record of created bridges: %w", err)
	}
	index, err = strconv.Atoi(string(data))
	return index, err == nil && index >= 0, nil
}

// Created reports whether the bridge with a name and an index, 0 for one that is missing, was created by a Setup. A bridge
// of that name with another index is one that another program has made since. Without a record, all are created
// ones, as to earlier versions.
func (s *Store) Created(name string, index int) (bool, error) {
	recorded, err := s.Recorded(name, index)
	if err != nil || recorded || s == nil {
		return recorded, err
	}
	if _, err = os.Lstat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("record of created bridges: %w", err)
	}
	return false, nil
}

// Recorded is Created, but without a record no bridge is a created one.
func (s *Store) Recorded(name string, index int) (bool, error) {
	if s == nil {
		return true, nil
	}
	if known, ok := s.created.Load(name); ok && known == index {
		return true, nil
	}
	var errs []error
	for _, dir := range []string{s.dir, s.usual} {
		recorded, had, err := read(dir, name)
		if err != nil || !had || recorded != index && recorded != 0 && index != 0 {
			errs = append(errs, err)
			continue
		}
		if recorded == index && index != 0 {
			s.created.Store(name, index)
		}
		return true, nil
	}
	return false, errors.Join(errs...)
}

// Index returns the recorded index of the bridge with a name; 0 if there is none.
func (s *Store) Index(name string) (index int, err error) {
	if s == nil {
		return 0, nil
	}
	for _, dir := range []string{s.dir, s.usual} {
		if index, _, err = read(dir, name); err != nil || index > 0 {
			return index, err
		}
	}
	return 0, nil
}

// maxSize is larger than the text of an index.
const maxSize = 32
