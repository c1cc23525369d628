package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// The functions here are open(2) and the like without what package os does for
// pipes and terminals, which doubles the calls of an operation.

// openFile opens a regular file of this user or root; the caller closes the
// descriptor. It follows no symbolic link and waits for no pipe. What is none, or
// another's, is statedir.ErrNotOurs.
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
		return fd, nil // we made it
	}
	if err := statedir.CheckFile(fd, path); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// maxFile is far above any record.
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

// replaceFile gives a file a new content, written as a draft first: whoever reads
// finds the old content or the new one, also after a crash of this process.
func replaceFile(path, draft string, content []byte) error {
	const fresh = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	fd, err := openFile(draft, fresh)
	if errors.Is(err, fs.ErrExist) { // a crash left it, or another program made it
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

// appendFile adds to a file that is there.
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

// rename is os.Rename without its look at what is there.
func rename(from, to string) error {
	if err := unix.Rename(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// remove removes a file; none is no error.
func remove(path string) error {
	if err := unix.Unlink(path); err != unix.ENOENT {
		return pathError("remove", path, err)
	}
	return nil
}

// pathError says what was done to which file, unless err is nil.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
