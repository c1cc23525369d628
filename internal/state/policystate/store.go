package policystate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/flock"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/smallfile"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// Store is the directory. It opens nothing before its first use, and is safe for concurrent use,
// also by several processes.
type Store struct {
	dir string

	mu    sync.Mutex
	known map[string]*Selection // by name: those that were read last; not changed any more
}

// New returns the store in a directory, which the first Lock makes.
func New(dir string) *Store { return &Store{dir: dir} }

// Member is an attachment in a network with policies.
type Member struct {
	Key        string            `json:"-"`
	Owner      names.Owner       `json:"owner"` // of its objects in the kernel
	Allocation string            `json:"allocation,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Addresses  []netip.Addr      `json:"addresses,omitempty"`
	Policy     string            `json:"policy,omitempty"` // its ID; "" for none
	// Former is the ID of the policy that the attachment had, while its link or its elements
	// may still lead to it; "" for none.
	Former string `json:"former,omitempty"`
	// Changing says that the labels or the policy have changed, while the attachment may still be
	// in selections of the former labels, or have connections that are denied now. Stale are the
	// names of former labels under which it may be found.
	Changing bool     `json:"changing,omitempty"`
	Stale    []string `json:"stale,omitempty"`
	// Gone says that the attachment is removed, and only the policies that it had may have to be
	// removed.
	Gone bool `json:"gone,omitempty"`
}

// Policy is a policy that attachments share.
type Policy struct {
	ID string `json:"id"`
	// Instance is that of the owners of its attachments.
	Instance string `json:"instance,omitempty"`
	Group    uint32 `json:"group"` // of the links that lead to it
	// Content is what the policy consists of. The store does not read it.
	Content    json.RawMessage `json:"content"`
	Selections []Selection     `json:"selections,omitempty"`
}

// Selection are the attachments for which a selector matches. The store compares only Label,
// which every member has; the caller compares the rest.
type Selection struct {
	// Name is a digest of the rest: selections with the same name are equal.
	Name string `json:"name"`
	// Label is a label that the selector requires, as LabelKey returns it, or "".
	Label string `json:"label,omitempty"`
	// Selector is not read by the store.
	Selector json.RawMessage `json:"selector"`
}

// Exists reports whether anything was ever stored.
func (s *Store) Exists() bool {
	_, err := os.Lstat(s.dir)
	return err == nil
}

// LabelKey returns the name of a label in the store.
func LabelKey(key, value string) string { return hash("label " + key + "=" + value) }

// AllocationKey returns the name of an allocation's ID, which finds members as a label does.
func AllocationKey(id string) string { return hash("allocation " + id) }

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}

// maxFile is the maximum size of a file.
const maxFile = 64 << 20

// Session is the store while it is locked.
type Session struct {
	*Store
	fd int
}

// Share locks the store for an attachment that comes or goes. It excludes Exclusive.
func (s *Store) Share(ctx context.Context) (*Session, error) { return s.lock(ctx, unix.LOCK_SH) }

// Exclusive locks the store to make or remove policies.
func (s *Store) Exclusive(ctx context.Context) (*Session, error) { return s.lock(ctx, unix.LOCK_EX) }

func (s *Store) lock(ctx context.Context, kind int) (*Session, error) {
	fd, err := s.openLock()
	if err != nil {
		return nil, fmt.Errorf("lock policies: %w", err)
	}
	if err := flock.Wait(ctx, fd, kind); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("lock policies: %w", err)
	}
	return &Session{Store: s, fd: fd}, nil
}

func (s *Store) openLock() (int, error) {
	file := filepath.Join(s.dir, "lock")
	open := func() (int, error) {
		return unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	fd, err := open()
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return -1, statedir.Unwritable(s.dir, err)
		}
		fd, err = open()
	}
	if err != nil {
		return -1, changing("open", file, err)
	}
	return fd, nil
}

// Unlock unlocks the store. The session cannot be used afterwards.
func (s *Session) Unlock() { unix.Close(s.fd) }

func (s *Store) member(key string) string     { return filepath.Join(s.dir, "members", key+".json") }
func (s *Store) policy(id string) string      { return filepath.Join(s.dir, "policies", id+".json") }
func (s *Store) users(id string) string       { return filepath.Join(s.dir, "policies", id+".users") }
func (s *Store) selection(n string) string    { return filepath.Join(s.dir, "selections", n+".json") }
func (s *Store) selecting(n string) string    { return filepath.Join(s.dir, "selections", n+".users") }
func (s *Store) by(kind, label string) string { return filepath.Join(s.dir, kind, "by", label) }

// anyLabel is the label of selections without one.
const anyLabel = "any"

// draftSuffix ends the names of files and directories that are not complete.
const draftSuffix = ".draft"

// write replaces a file, and makes its directory if necessary.
func write(path string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	err = smallfile.ReplaceOwn(path, path+draftSuffix, data)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = smallfile.ReplaceOwn(path, path+draftSuffix, data)
		}
	}
	return statedir.Unwritable(path, err)
}

// read reads a file into content. found is false if there is none.
func read(path string, content any) (found bool, err error) {
	data, err := smallfile.ReadOwn(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, content)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}

// touch makes an empty file. found is false if its directory does not exist.
func touch(path string) (found bool, err error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, changing("open", path, err)
	}
	return true, unix.Close(fd)
}

// mark makes an empty file, and its directory if necessary.
func mark(dir, name string) error {
	for range 100 { // another process may remove the directory, which is empty
		found, err := touch(filepath.Join(dir, name))
		if found || err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.MkdirAll(filepath.Dir(dir), 0o700)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return changing("mkdir", dir, err)
		}
	}
	return fmt.Errorf("make %s: its directory is removed again and again", filepath.Join(dir, name))
}

// unmark removes an empty file, and its directory if that is empty then.
func unmark(dir, name string) error {
	if err := remove(filepath.Join(dir, name)); err != nil {
		return err
	}
	return rmdir(dir)
}

// rmdir removes a directory if it is empty.
func rmdir(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return changing("rmdir", dir, err)
	}
	return nil
}

// changing returns the error of a call that changes a file.
func changing(op, path string, err error) error {
	return statedir.Unwritable(path, &fs.PathError{Op: op, Path: path, Err: err})
}

// removeFile removes what write makes, also if it did not end.
func removeFile(path string) error {
	if err := remove(path + draftSuffix); err != nil {
		return err
	}
	return remove(path)
}

func remove(path string) error {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return changing("remove", path, err)
	}
	return nil
}

// list returns the names in a directory that end in suffix, without it. most is the maximum number of
// names that it reads; 0 for all.
func list(dir, suffix string, most int) ([]string, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // os.Open calls fcntl and epoll_ctl five times
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, err := f.Readdirnames(most)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var found []string
	for _, name := range names {
		if base, ok := strings.CutSuffix(name, suffix); ok && base != "by" {
			found = append(found, base)
		}
	}
	slices.Sort(found)
	return found, nil
}
