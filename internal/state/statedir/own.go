package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrNotOurs: another user may have changed a file or directory. It is neither
// read nor written.
var ErrNotOurs = errors.New("not trusted")

// othersWrite is the mode bits for write access of group and others.
const othersWrite = 0o022

// CheckDirs returns nil if only this process's user and root can create, rename
// and remove files in the directories. A missing directory is valid. The error is
// ErrNotOurs or an error of the system.
func CheckDirs(paths ...string) error {
	for _, path := range paths {
		var stat unix.Stat_t
		err := unix.Lstat(path, &stat)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		if err := checkDir(path, &stat); err != nil {
			return err
		}
	}
	return nil
}

// CheckDir is CheckDirs of an open directory.
func CheckDir(fd int, path string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return &fs.PathError{Op: "fstat", Path: path, Err: err}
	}
	return checkDir(path, &stat)
}

func checkDir(path string, stat *unix.Stat_t) error {
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return notOurs(path, stat, "is not a directory: remove it")
	}
	return checkOwner(path, stat)
}

// Guard is CheckDirs of a directory and its subdirectories, for repeated use. It checks
// the subdirectories again only after the directory has changed, because replacing one
// of them changes the directory. It does not notice if the user makes a subdirectory
// writable for others later. The zero value is ready, and safe for concurrent use.
type Guard struct{ seen atomic.Pointer[seen] }

// seen is the metadata of the directory at the last successful check.
type seen struct {
	device, inode uint64
	mode, user    uint32
	changed       unix.Timespec
}

// Check is CheckDirs of the directory and of the subdirectories with the given names.
func (g *Guard) Check(dir string, below ...string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return CheckDirs(dir)
	}
	now := seen{stat.Dev, stat.Ino, stat.Mode, stat.Uid, stat.Ctim}
	if last := g.seen.Load(); last != nil && *last == now {
		return nil
	}
	paths := []string{dir}
	for _, name := range below {
		paths = append(paths, filepath.Join(dir, name))
	}
	if err := CheckDirs(paths...); err != nil {
		return err
	}
	g.seen.Store(&now)
	return nil
}

// CheckFile returns ErrNotOurs unless an open file is a regular file with a single name
// to which only this process's user and root can write.
func CheckFile(fd int, path string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return &fs.PathError{Op: "fstat", Path: path, Err: err}
	}
	return CheckFileStat(path, &stat)
}

// CheckFileStat is CheckFile of a file with the given metadata.
func CheckFileStat(path string, stat *unix.Stat_t) error {
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return notOurs(path, stat, "is not a regular file: remove it")
	case stat.Nlink > 1: // 0 if it was replaced meanwhile
		return notOurs(path, stat, "has other names: remove it")
	}
	return checkOwner(path, stat)
}

func checkOwner(path string, stat *unix.Stat_t) error {
	switch {
	case stat.Uid != 0 && stat.Uid != uint32(os.Geteuid()):
		return notOurs(path, stat, fmt.Sprintf("belongs to another user: check its content and chown it to %d, or remove it", os.Geteuid()))
	case stat.Mode&othersWrite != 0:
		return notOurs(path, stat, "can be written by others: check its content and chmod it go-w, or remove it")
	}
	return nil
}

func notOurs(path string, stat *unix.Stat_t, why string) error {
	return fmt.Errorf("%q (user %d, mode %04o): %w: it %s", path, stat.Uid, stat.Mode&0o7777, ErrNotOurs, why)
}
