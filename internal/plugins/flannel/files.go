package flannel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/smallfile"
)

// files is the directory with the configurations of delegates. The name of each file is
// the ID of the container, as with the reference plugin. So a container with several
// attachments has only the file of the last one.
type files struct{ dir string } // "" if the configuration has no valid directory

// maxFile is far above the size of any real configuration.
const maxFile = 1 << 20

var errNoDir = errors.New(`the value of "dataDir" is not an absolute path`)

// path returns the path of the file of a container.
func (f files) path(id string) (string, error) {
	if f.dir == "" {
		return "", errNoDir
	}
	if err := names.ValidateContainer(id); err != nil {
		return "", err
	}
	return filepath.Join(f.dir, id), nil
}

// draft returns the path of an incomplete file. No container has such an ID.
func (f files) draft(id string) string { return filepath.Join(f.dir, "."+id+".tmp") }

// read reads the file of a container. It does not follow a symbolic link.
func (f files) read(id string) ([]byte, error) {
	path, err := f.path(id)
	if err != nil {
		return nil, err
	}
	return smallfile.ReadOwn(path, maxFile)
}

// write replaces the file of a container.
func (f files) write(id string, text []byte) error {
	path, err := f.path(id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	return smallfile.ReplaceOwn(path, f.draft(id), text)
}

// remove removes the file of a container, and one that a write left incomplete.
func (f files) remove(id string) error {
	path, err := f.path(id)
	if err != nil {
		return err
	}
	return errors.Join(removeFile(path), removeFile(f.draft(id)))
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return nil
}

// ids returns the IDs of the containers that have files.
func (f files) ids() ([]string, error) {
	if f.dir == "" {
		return nil, errNoDir
	}
	entries, err := os.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if names.ValidateContainer(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// saved is what the file of a container says about an attachment.
type saved struct {
	// delegate is nil if there is no usable file.
	delegate *delegate
	// foreign reports that the file is that of another network of the container.
	foreign bool
}

// saved reads the file of a container. A file that is damaged counts as none.
func (p *flannel) saved(c *sdk.CmdArgs) (saved, error) {
	text, err := p.files.read(c.ContainerID)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, errNoDir):
		return saved{}, nil
	case isNoFile(err):
		p.warn(c, err)
		return saved{}, nil
	case err != nil:
		return saved{}, fmt.Errorf("read the delegate's configuration: %w", err)
	}
	d, err := parseDelegate(text)
	switch {
	case err != nil:
		p.warn(c, err)
		return saved{}, nil
	case d.Name != p.Name:
		return saved{foreign: true}, nil
	}
	return saved{delegate: d}, nil
}

// isNoFile reports whether an error means that there is another object in the place of
// a file that the plugin has written.
func isNoFile(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, smallfile.ErrNotRegular) || errors.Is(err, smallfile.ErrTooLarge)
}

func (p *flannel) warn(c *sdk.CmdArgs, why error) {
	c.Host.Log.Warn("the saved configuration of the delegate is not used", "directory", p.files.dir, "container", c.ContainerID, "because", why)
}
