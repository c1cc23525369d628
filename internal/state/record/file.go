package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// These functions make the plain system calls, without the checks for pipes and
// terminals in package os, which double the number of calls of an operation.

// openFile opens a regular file of this user or root; the caller closes the
// descriptor. It does not follow symbolic links or wait for pipes. The error
// for any other file is statedir.ErrNotOurs.
func openFile(path string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != unix.EINTR {
			break
		}
	}
	switch err {
	case nil:
	case unix.ELOOP:
		return -1, fmt.Errorf("%q: %w: it is a symbolic link: remove it", path, statedir.ErrNotOurs)
	default:
		return -1, pathError("open", path, err)
	}
	if flags&unix.O_EXCL != 0 {
		return fd, nil // created by this call
	}
	if err := statedir.CheckFile(fd, path); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// maxFile is far above the size of any record.
const maxFile = 64 << 20

func readFile(path string) ([]byte, error) {
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data := make([]byte, 0, 4<<10) // as much as most records have
	for {
		if len(data) > maxFile {
			return nil, pathError("read", path, unix.EFBIG)
		}
		n, err := unix.Read(fd, data[len(data):cap(data)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return data, pathError("read", path, err)
		}
		data = data[:len(data)+n]
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

// replaceFile replaces the content of a file by writing a draft and renaming
// it. A reader sees the old content or the new one, even after a crash of this
// process.
func replaceFile(path, draft string, content []byte) error {
	const fresh = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	fd, err := openFile(draft, fresh)
	if errors.Is(err, fs.ErrExist) { // left by a crash, or created by another program
		if err = remove(draft); err == nil {
			fd, err = openFile(draft, fresh)
		}
	}
	if err != nil {
		return err
	}
	if err = errors.Join(writeAll(fd, draft, content), closeFile(fd, draft)); err == nil {
		err = rename(draft, path)
	}
	if err != nil {
		return errors.Join(err, remove(draft))
	}
	return nil
}

// appendFile appends to an existing file.
func appendFile(path string, content []byte) error {
	fd, err := openFile(path, unix.O_WRONLY|unix.O_APPEND)
	if err != nil {
		return err
	}
	return errors.Join(writeAll(fd, path, content), closeFile(fd, path))
}

func writeAll(fd int, path string, content []byte) error {
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return pathError("write", path, err)
		}
		content = content[n:]
	}
	return nil
}

func closeFile(fd int, path string) error { return pathError("close", path, unix.Close(fd)) }

// rename is os.Rename without its check of the target.
func rename(from, to string) error {
	if err := unix.Rename(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// remove removes a file. A missing file is not an error.
func remove(path string) error {
	if err := unix.Unlink(path); err != unix.ENOENT {
		return pathError("remove", path, err)
	}
	return nil
}

// pathError returns err with the operation and the path; nil for nil.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
