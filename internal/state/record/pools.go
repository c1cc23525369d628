package record

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The pool of a living process has a file of its own with a POSIX record lock
// (fcntl(2), F_SETLK). A child that the process has forked does not inherit that
// lock, unlike an open file description lock, which would outlive a killed process
// until the child runs its program. But the lock ends when the process closes any
// descriptor of the file. Therefore no process opens the files of its own pools
// again: ownPools has their names.
const poolsDir = "pools"

// poolPrefix begins the names of pools. Processes of former versions chose names
// without it, and held a byte of the lock file instead.
const poolPrefix = "pool-"

var ownPools = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

func isOwnPool(pool string) bool {
	ownPools.Lock()
	defer ownPools.Unlock()
	return ownPools.names[pool]
}

func setOwnPool(pool string, own bool) {
	ownPools.Lock()
	defer ownPools.Unlock()
	if own {
		ownPools.names[pool] = true
	} else {
		delete(ownPools.names, pool)
	}
}

// isPoolName reports whether a name is one that LockPool chooses.
func isPoolName(pool string) bool {
	number, ok := strings.CutPrefix(pool, poolPrefix)
	value, err := hex.DecodeString(number)
	return ok && err == nil && len(value) == 8
}

func (s *Store) poolFile(pool string) string { return filepath.Join(s.pools, pool) }

// LockPool makes a name for a pool and marks it as that of a living process, until
// release is called or the process ends. No two pools have the same name.
func (s *Store) LockPool() (pool string, release func(), err error) {
	if err := s.checkDirs(); err != nil {
		return "", nil, fmt.Errorf("lock pool: state directory: %w", fault(s.state, err))
	}
	for {
		pool, release, err = s.tryLockPool()
		if err == nil {
			return pool, release, nil
		}
		if !errors.Is(err, errPoolSwept) {
			return "", nil, fmt.Errorf("lock pool: %w", fault(s.state, err))
		}
	}
}

// errPoolSwept: a Sweep has removed the file of a pool before it was locked.
var errPoolSwept = errors.New("the file of the pool was removed")

func (s *Store) tryLockPool() (pool string, release func(), err error) {
	var random [8]byte
	rand.Read(random[:]) // never fails
	pool = poolPrefix + hex.EncodeToString(random[:])
	setOwnPool(pool, true)
	fd, err := s.createPoolFile(pool)
	if err != nil {
		setOwnPool(pool, false)
		return "", nil, err
	}
	end := func() {
		unix.Close(fd)
		setOwnPool(pool, false)
	}
	if err = lockPoolFile(fd, s.poolFile(pool)); err != nil {
		end()
		return "", nil, err
	}
	// Processes of former versions look only at this byte.
	l, err := s.openLocks()
	if err == nil {
		if err = l.set(writeLock, poolOffset(pool), 1); err != nil {
			l.close()
		}
	}
	if err != nil {
		err = errors.Join(err, remove(s.poolFile(pool)))
		end()
		return "", nil, err
	}
	return pool, sync.OnceFunc(func() {
		_ = remove(s.poolFile(pool)) // otherwise Sweep does
		l.close()
		end()
	}), nil
}

func (s *Store) createPoolFile(pool string) (fd int, err error) {
	const fresh = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL
	fd, err = openFile(s.poolFile(pool), fresh)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.pools, 0o700); err == nil {
			fd, err = openFile(s.poolFile(pool), fresh)
		}
	}
	return fd, err
}

// lockPoolFile locks a new file. The error is errPoolSwept if a Sweep was faster.
func lockPoolFile(fd int, path string) error {
	err := setLock(fd, unix.F_SETLK, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errPoolSwept
	}
	if err != nil {
		return pathError("lock", path, err)
	}
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return pathError("stat", path, err)
	}
	if file.Nlink == 0 {
		return errPoolSwept
	}
	return nil
}

// PoolAlive reports whether the process of a pool is alive. If that cannot be found
// out, it is.
func (s *Store) PoolAlive(pool string) bool {
	if isOwnPool(pool) {
		return true
	}
	path, offset := s.poolFile(pool), int64(0)
	if !isPoolName(pool) { // of a process of a former version
		path, offset = s.locks, poolOffset(pool)
	}
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer unix.Close(fd)
	// Only a writer's lock is one of a process with the pool: see sweepPool.
	l := unix.Flock_t{Type: unix.F_RDLCK, Start: offset, Len: 1}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) != nil || l.Type != unix.F_UNLCK
}

// poolOffset returns the offset of a pool's lock in the lock file. No ID contains a slash.
func poolOffset(pool string) int64 { return offsetOf("pool/" + pool) }

// SweepPools removes the files of the pools of dead processes, which belong to no scope.
func (s *Store) SweepPools() error {
	entries, err := os.ReadDir(s.pools)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if isPoolName(e.Name()) && !isOwnPool(e.Name()) {
			errs = append(errs, s.sweepPool(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// sweepPool removes the file of a pool, unless it is locked. It holds a reader's lock
// meanwhile, so that the process that has just created the file notices.
func (s *Store) sweepPool(pool string) error {
	fd, err := openFile(s.poolFile(pool), unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = setLock(fd, unix.F_OFD_SETLK, unix.F_RDLCK)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return pathError("lock", s.poolFile(pool), err)
	}
	return remove(s.poolFile(pool))
}

// setLock sets a lock of the first byte of a file. It does not wait.
func setLock(fd, command int, kind int16) error {
	for {
		err := unix.FcntlFlock(uintptr(fd), command, &unix.Flock_t{Type: kind, Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
