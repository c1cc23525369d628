package privhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// coverer mounts empty directories over directories of the real host.
type coverer struct {
	devices []uint64 // device numbers of the file systems it mounted
}

// dir makes path an empty, private directory.
func (c *coverer) dir(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("cover directory %q: not an absolute path", path)
	}
	parent, err := nearestExisting(path)
	if err != nil {
		return fmt.Errorf("cover directory %q: %w", path, err)
	}
	if parent == filepath.Clean(path) {
		return c.mount(path)
	}
	// Creating the missing directory in place would change the real host, and an
	// ordinary user lacks the permission. So it is created in a private copy of
	// the parent directory.
	if err := c.copyDir(parent); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("cover directory %q: %w", path, err)
	}
	return nil
}

// mount puts an empty file system over the existing directory path.
func (c *coverer) mount(path string) error {
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on %q: %w", path, err)
	}
	device, err := deviceOf(path)
	if err != nil {
		return err
	}
	c.devices = append(c.devices, device)
	return nil
}

// copyDir replaces the existing directory path by a private directory with the
// same entries, to which entries can be added.
func (c *coverer) copyDir(path string) error {
	device, err := deviceOf(path)
	if err != nil {
		return err
	}
	if slices.Contains(c.devices, device) {
		return nil
	}
	if path == "/" {
		return errors.New("replace directory \"/\": would leave no root")
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("replace directory %q: %w", path, err)
	}
	original, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("replace directory %q: %w", path, err)
	}
	defer original.Close()
	if err := c.mount(path); err != nil {
		return err
	}
	for _, entry := range entries {
		source := fmt.Sprintf("/proc/self/fd/%d/%s", original.Fd(), entry.Name())
		if err := copyEntry(entry, source, filepath.Join(path, entry.Name())); err != nil {
			return fmt.Errorf("replace entry of directory %q: %w", path, err)
		}
	}
	return nil
}

// copyEntry creates target as a copy of source: an equal symbolic link, or a bind
// mount of the file or directory. It never changes an existing target, which
// could only belong to the real host.
func copyEntry(entry fs.DirEntry, source, target string) error {
	if entry.Type()&fs.ModeSymlink != 0 {
		to, err := os.Readlink(source)
		if err != nil {
			return err
		}
		return os.Symlink(to, target)
	}
	if err := mountPoint(target, entry.IsDir()); err != nil {
		return err
	}
	// The bind is recursive because the kernel forbids an ordinary user to uncover
	// directories below mounts.
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %q: %w", target, err)
	}
	return nil
}

// mountPoint creates an empty directory or an empty file as a mount point.
func mountPoint(path string, isDir bool) error {
	if isDir {
		return os.Mkdir(path, 0o755)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// nearestExisting returns path if it exists, else its closest existing ancestor.
func nearestExisting(path string) (string, error) {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		_, err := os.Stat(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
}

// deviceOf returns the device number of the file system that holds path.
func deviceOf(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("stat %q: %w", path, err)
	}
	return stat.Dev, nil
}
