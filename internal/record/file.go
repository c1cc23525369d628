package record

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openFile opens a file as os.OpenFile does, without offering it to the poller:
// that no regular file can be polled takes five system calls to find out.
func openFile(path string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if err != unix.EINTR {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

func readFile(path string) ([]byte, error) {
	f, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, 0, 4<<10) // as much as most records have
	for {
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

// replaceFile gives a file a new content, written as a draft first: whoever reads
// finds the old content or the new one, also after a crash of this process.
func replaceFile(path, draft string, content []byte) error {
	f, err := openFile(draft, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = rename(draft, path)
	}
	if err != nil {
		return errors.Join(err, remove(draft))
	}
	return nil
}

// rename is os.Rename without its look at what is there.
func rename(from, to string) error {
	if err := unix.Rename(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// remove removes a file; none is no error.
func remove(path string) error {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
