// Package smallfile reads and writes small files, whose paths come from a configuration
// or a directory. It guards against other objects at these paths: a named pipe without
// a writer, an endless device, a link to another file.
package smallfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular: the path leads to an object that is not a regular file.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge: the file is larger than the limit.
var ErrTooLarge = errors.New("file is too large")

// Read reads a regular file of at most most bytes. It follows symbolic links and does
// not block: it refuses a named pipe or a device before it opens the path, and again
// after opening, in case the file was replaced in between. errors.Is finds
// ErrNotRegular and ErrTooLarge, which do not name the path; other errors are
// *fs.PathErrors.
func Read(path string, most int64) ([]byte, error) {
	var info unix.Stat_t
	if err := retry(func() error { return unix.Stat(path, &info) }); err != nil {
		return nil, pathError("stat", path, err)
	}
	if err := checkRegular(info.Mode); err != nil {
		return nil, err
	}
	return read(path, most, 0)
}

// ReadOwn is Read of a file in one of allocnet's directories. It does not
// follow a symbolic link, which only another program can have created:
// errors.Is finds unix.ELOOP.
func ReadOwn(path string, most int64) ([]byte, error) { return read(path, most, unix.O_NOFOLLOW) }

// WriteOwn writes a file in one of allocnet's directories. Only the owner can read it.
// WriteOwn removes any other object at the path, so that it neither follows a link nor
// blocks on a pipe. The replacement is not atomic: after a crash the file may be
// missing or incomplete.
func WriteOwn(path string, data []byte) error {
	const fresh = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	fd, err := open(path, fresh)
	if errors.Is(err, fs.ErrExist) {
		if err = os.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			fd, err = open(path, fresh)
		}
	}
	if err != nil {
		return err
	}
	for len(data) > 0 && err == nil {
		var n int
		err = retry(func() (err error) { n, err = unix.Write(fd, data); return err })
		data = data[max(n, 0):]
	}
	return errors.Join(pathError("write", path, err), pathError("close", path, unix.Close(fd)))
}

// ReplaceOwn replaces a file in one of allocnet's directories with a draft, which it writes as
// WriteOwn does. The replacement is atomic. If it fails, ReplaceOwn removes the draft.
func ReplaceOwn(path, draft string, data []byte) error {
	err := WriteOwn(draft, data)
	if err == nil {
		if err = unix.Rename(draft, path); err != nil {
			err = &os.LinkError{Op: "rename", Old: draft, New: path, Err: err}
		}
	}
	if err == nil {
		return nil
	}
	if removeErr := os.Remove(draft); !errors.Is(removeErr, fs.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}

// ReadContext is Read that returns when the context ends, because a file system may not
// respond. In that case a goroutine continues to wait for the file system.
func ReadContext(ctx context.Context, path string, most int64) ([]byte, error) {
	ended := func() error { return &fs.PathError{Op: "read", Path: path, Err: ctx.Err()} }
	if ctx.Err() != nil {
		return nil, ended()
	}
	type outcome struct {
		data []byte
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		data, err := Read(path, most)
		done <- outcome{data, err}
	}()
	select {
	case o := <-done:
		return o.data, o.err
	case <-ctx.Done():
		return nil, ended()
	}
}

// The following functions make the plain system calls: package os doubles their number to find out
// whether a file is a pipe or a terminal.

func open(path string, flags int) (fd int, err error) {
	err = retry(func() (err error) { fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0o600); return err })
	return fd, pathError("open", path, err)
}

// retry repeats a call that a signal has interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// read reads a regular file, which it opens with additional flags.
func read(path string, most int64, flags int) ([]byte, error) {
	fd, err := open(path, unix.O_RDONLY|unix.O_NONBLOCK|flags)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return nil, pathError("stat", path, err)
	}
	if err := checkRegular(info.Mode); err != nil {
		return nil, err
	}
	// One byte more than the file has, to see its end. Files of procfs have the size 0.
	data := make([]byte, 0, max(512, min(info.Size, most)+1))
	for {
		var n int
		err := retry(func() (err error) { n, err = unix.Read(fd, data[len(data):cap(data)]); return err })
		if err != nil {
			return nil, pathError("read", path, err)
		}
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > most:
			return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)
		case n == 0:
			return data, nil
		case len(data) == cap(data):
			data = append(data, 0)[:len(data)]
		}
	}
}

// checkRegular returns ErrNotRegular with the kind of the object, unless it is a
// regular file.
func checkRegular(mode uint32) error {
	kind := "device"
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		kind = "directory"
	case unix.S_IFIFO:
		kind = "named pipe"
	case unix.S_IFSOCK:
		kind = "socket"
	}
	return fmt.Errorf("a %s, %w", kind, ErrNotRegular)
}
