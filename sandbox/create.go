package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/exhausted"
	"github.com/allocnet/allocnet/internal/flock"
)

// DefaultDir is the directory of iproute2's named network namespaces.
const DefaultDir = "/run/netns"

// maxName is the maximum length of a file name, in bytes.
const maxName = 255

// Create creates a sandbox in DefaultDir. See [CreateIn].
func Create(name string) (*Sandbox, error) {
	return CreateIn(DefaultDir, name)
}

// CreateIn creates a sandbox with the given name in dir: a new network namespace with
// only the loopback link, which is up. CreateIn creates dir if necessary and makes it a
// shared mount point, as iproute2 does, so that the sandboxes are visible in other
// mount namespaces.
//
// The error is ErrInvalidName, ErrExist, allocnet.ErrLimit or a system error. After an
// error, nothing remains except dir.
func CreateIn(dir, name string) (*Sandbox, error) {
	if err := prepare(context.Background(), dir, name); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	s, err := fill(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create sandbox %q: %w", path, err), Destroy(path))
	}
	return s, nil
}

// CreateNoted is CreateIn, but calls note with the identity of the new namespace before
// it mounts the namespace. A crash before the mount destroys the namespace. So a caller
// that records the identity in note can find everything that a crash leaves behind. If
// note fails, CreateNoted creates nothing and returns note's error. The context ends the
// wait for another process that makes dir a mount point.
func CreateNoted(ctx context.Context, dir, name string, note func(Identity) error) (*Sandbox, error) {
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
		err = prepare(ctx, dir, name)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := bind("/proc/self/fd/"+strconv.Itoa(int(namespace.Fd())), path); err != nil {
		return nil, errors.Join(fmt.Errorf("create sandbox %q: %w", path, err), s.Destroy())
	}
	return s, nil
}

// prepare creates dir, if necessary, and the file on which the namespace will be
// mounted.
func prepare(ctx context.Context, dir, name string) error {
	if err := ValidateName(name); err != nil {
		return fmt.Errorf("create sandbox in %q: %w", dir, err)
	}
	path := filepath.Join(dir, name)
	if err := shareDir(ctx, dir); err != nil {
		return fmt.Errorf("create sandbox %q: %w", path, err)
	}
	if err := reserve(path); err != nil {
		return fmt.Errorf("create sandbox %q: %w", path, err)
	}
	return nil
}

// ValidateName returns nil if a sandbox can have the given name, and ErrInvalidName
// otherwise. A valid name is a file name of at most 255 bytes in UTF-8. It has no
// control characters, so that it fits on one line. It does not begin with a dash, so
// that programs do not read it as an option. Create, CreateIn and Pool.Take call
// ValidateName.
func ValidateName(name string) error {
	hidden := func(r rune) bool { return r == '/' || !unicode.IsGraphic(r) }
	switch {
	case name == "", name == ".", name == "..", name[0] == '-', len(name) > maxName,
		!utf8.ValidString(name), strings.ContainsFunc(name, hidden):
		return fmt.Errorf("%w: %.255q", ErrInvalidName, name)
	}
	return nil
}

// reserved is the mode of a file on which no namespace is mounted yet.
const reserved fs.FileMode = 0o444

// reserve creates the file on which the namespace will be mounted.
func reserve(path string) error {
	if err := unix.Mknod(path, unix.S_IFREG|uint32(reserved), 0); err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	return nil
}

// steps turn a thread and the file at path into a sandbox. Destroy undoes all of them.
var steps = []func(path string) error{
	func(string) error {
		return limited("user.max_net_namespaces", os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)))
	},
	func(string) error { return loopbackUp() },
	func(path string) error { return bind(threadNetns, path) },
}

// bind mounts the namespace at source on the file at path.
func bind(source, path string) error {
	return limited("fs.mount-max", os.NewSyscallError("mount", unix.Mount(source, path, "", unix.MS_BIND, "")))
}

// limited returns allocnet.ErrLimit with the name of the sysctl if the kernel refuses to make
// another namespace or mount: it says that no space is left then.
func limited(sysctl string, err error) error {
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return fmt.Errorf("%w: %w: raise the sysctl %s", allocnet.ErrLimit, err, sysctl)
}

// fill mounts a new namespace on the file at path and opens it.
func fill(path string) (*Sandbox, error) {
	if err := onThread(func() error { return take(steps, path) }); err != nil {
		return nil, exhausted.Limit(err)
	}
	return Open(path)
}

// unnamed creates a namespace without a mount. The kernel destroys it when the returned
// descriptor is closed.
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
		return nil, fmt.Errorf("make namespace: %w", exhausted.Limit(err))
	}
	return os.NewFile(uintptr(fd), "network namespace"), nil
}

// take runs steps until one fails.
func take(steps []func(string) error, path string) error {
	for _, step := range steps {
		if err := step(path); err != nil {
			return err
		}
	}
	return nil
}

// shareDir makes dir a shared mount point.
func shareDir(ctx context.Context, dir string) error {
	if mount := mountOf(dir); mount != 0 {
		if last, ok := shared.Load(dir); ok && last == mount {
			return nil
		}
	}
	if err := shareNewDir(ctx, dir); err != nil {
		return err
	}
	shared.Store(dir, mountOf(dir))
	return nil
}

// shared has the directories that shareDir has made shared mount points, with the IDs of
// their mounts. To make one shared again waits for all other mounts and unmounts.
var shared sync.Map

// mountOf returns the ID of the mount whose root is dir: statx(2), STATX_MNT_ID_UNIQUE. It
// returns 0 if dir is no mount point or the kernel, before Linux 6.8, has no such IDs.
func mountOf(dir string) uint64 {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID_UNIQUE, &st)
	if err != nil || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return 0
	}
	return st.Mnt_id
}

func shareNewDir(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := makeShared(dir); !errors.Is(err, unix.EINVAL) {
		return err
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	// Another process may have made dir a mount point in the meantime. One mount is
	// enough.
	if err := makeShared(dir); !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind directory %q: %w", dir, err)
	}
	return makeShared(dir)
}

// makeShared makes the mounts in dir propagate to other mount namespaces. The error is
// EINVAL if dir is not a mount point.
func makeShared(dir string) error {
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share directory %q: %w", dir, err)
	}
	return nil
}

// lockDir takes the lock that iproute2 also takes. Mounting dir on itself does not
// change its inode, so all processes lock the same file.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock.Wait(ctx, int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock directory %q: %w", dir, err)
	}
	return func() { file.Close() }, nil
}
