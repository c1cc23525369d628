package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// DefaultDir is the directory of iproute2's named network namespaces.
const DefaultDir = "/run/netns"

// maxName is the most bytes that the name of a file can have.
const maxName = 255

// Create creates a sandbox in DefaultDir. See [CreateIn].
func Create(name string) (*Sandbox, error) {
	return CreateIn(DefaultDir, name)
}

// CreateIn creates a sandbox of that name in dir: a new network namespace with nothing but its loopback link, which is
// up. CreateIn makes dir if it is missing, and makes it a shared mount point, as iproute2 does, so that other mount
// namespaces see the sandboxes in it.
//
// The error is ErrInvalidName, ErrExist or an error of the system. After an error, nothing remains but dir.
func CreateIn(dir, name string) (*Sandbox, error) {
	if err := prepare(dir, name); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	s, err := fill(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create sandbox %q: %w", path, err), Destroy(path))
	}
	return s, nil
}

// CreateNoted is CreateIn that calls note with the identity of the new namespace before it mounts the namespace. A crash
// before the mount destroys the namespace, so a caller that records the identity in note can find everything that a
// crash leaves. If note fails, CreateNoted creates nothing and returns note's error.
func CreateNoted(dir, name string, note func(Identity) error) (*Sandbox, error) {
	path := filepath.Join(dir, name)
	if err := ValidateName(name); err != nil {
		return nil, fmt.Errorf("create sandbox in %q: %w", dir, err)
	}
	namespace, err := unnamed()
	if err != nil {
		return nil, fmt.Errorf("create sandbox %q: %w", path, err)
	}
	s := &Sandbox{path: path, file: namespace}
	id, err := s.Identity()
	if err == nil {
		err = note(id)
	}
	if err == nil {
		err = prepare(dir, name)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := bind("/proc/self/fd/"+strconv.Itoa(int(namespace.Fd())), path); err != nil {
		return nil, errors.Join(fmt.Errorf("create sandbox %q: %w", path, err), s.Destroy())
	}
	return s, nil
}

// prepare makes the file that the namespace will be mounted on, in a directory fit for it.
func prepare(dir, name string) error {
	if err := ValidateName(name); err != nil {
		return fmt.Errorf("create sandbox in %q: %w", dir, err)
	}
	path := filepath.Join(dir, name)
	if err := shareDir(dir); err != nil {
		return fmt.Errorf("create sandbox %q: %w", path, err)
	}
	if err := reserve(path); err != nil {
		return fmt.Errorf("create sandbox %q: %w", path, err)
	}
	return nil
}

// ValidateName returns nil if a sandbox can have that name, and ErrInvalidName otherwise. A valid name is a file name of
// at most 255 bytes in UTF-8. It has no control characters, so that it fits on one line, and does not begin with a dash,
// so that no program takes it for an option. Create, CreateIn and Pool.Take call ValidateName.
func ValidateName(name string) error {
	hidden := func(r rune) bool { return r == '/' || !unicode.IsGraphic(r) }
	switch {
	case name == "", name == ".", name == "..", name[0] == '-', len(name) > maxName,
		!utf8.ValidString(name), strings.ContainsFunc(name, hidden):
		return fmt.Errorf("%w: %.255q", ErrInvalidName, name)
	}
	return nil
}

// reserved is the mode of a file that nothing is mounted on yet.
const reserved fs.FileMode = 0o444

// reserve makes the file that the namespace will be mounted on.
func reserve(path string) error {
	if err := unix.Mknod(path, unix.S_IFREG|uint32(reserved), 0); err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	return nil
}

// steps turn a thread and the file at path into a sandbox. They have one undo, which is Destroy.
var steps = []func(path string) error{
	func(string) error { return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)) },
	func(string) error { return loopbackUp() },
	func(path string) error { return bind(threadNetns, path) },
}

// bind mounts the namespace that is at source on the file at path.
func bind(source, path string) error {
	return os.NewSyscallError("mount", unix.Mount(source, path, "", unix.MS_BIND, ""))
}

// fill mounts a new namespace on the file at path and opens it.
func fill(path string) (*Sandbox, error) {
	if err := onThread(func() error { return take(steps, path) }); err != nil {
		return nil, err
	}
	return Open(path)
}

// unnamed makes a namespace that is mounted nowhere: the kernel destroys it with the returned descriptor.
func unnamed() (*os.File, error) {
	fd := -1
	err := onThread(func() error {
		err := take(steps[:2], "")
		if err == nil {
			fd, err = openRaw(threadNetns, 0)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "network namespace"), nil
}

func take(steps []func(string) error, path string) error {
	for _, step := range steps {
		if err := step(path); err != nil {
			return err
		}
	}
	return nil
}

// shareDir makes dir a shared mount point.
func shareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := makeShared(dir); !errors.Is(err, unix.EINVAL) {
		return err
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	// It was no mount point, but another process may have made it one since; one mount is enough.
	if err := makeShared(dir); !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind directory %q: %w", dir, err)
	}
	return makeShared(dir)
}

// makeShared lets mounts in dir propagate. The error is EINVAL if dir is no mount point.
func makeShared(dir string) error {
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share directory %q: %w", dir, err)
	}
	return nil
}

// lockDir takes the lock that iproute2 takes too. The mount changes the path but not the file behind the lock.
func lockDir(dir string) (unlock func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock directory %q: %w", dir, err)
	}
	return func() { file.Close() }, nil
}
