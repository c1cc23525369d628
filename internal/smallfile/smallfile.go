// Package smallfile reads and writes small files, whose paths come from a configuration
// or a directory. It guards against other objects at these paths: a named pipe without
// a writer, an endless device, a link to another file.
package smallfile

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(info); err != nil {
		return nil, err
	}
	return read(path, most, 0)
}

// ReadOwn is Read of a file in one of allocnet's directories. It does not
// follow a symbolic link, which only another program can have created:
// errors.Is finds unix.ELOOP.
func ReadOwn(path string, most int64) ([]byte, error) { return read(path, most, unix.O_NOFOLLOW) }

// WriteOwn writes a file in one of allocnet's directories. Only the owner can read it.
// WriteOwn first removes any object at the path, so that it neither follows a link nor
// blocks on a pipe. The replacement is not atomic: after a crash the file may be
// missing or incomplete.
func WriteOwn(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
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

// read reads a regular file, which it opens with additional flags.
func read(path string, most int64, flags int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = checkRegular(info)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)
	}
	return data, nil
}

// checkRegular returns ErrNotRegular with the kind of the object, unless it is a
// regular file.
func checkRegular(info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	kind := "device"
	switch info.Mode().Type() {
	case fs.ModeDir:
		kind = "directory"
	case fs.ModeNamedPipe:
		kind = "named pipe"
	case fs.ModeSocket:
		kind = "socket"
	}
	return fmt.Errorf("a %s, %w", kind, ErrNotRegular)
}
