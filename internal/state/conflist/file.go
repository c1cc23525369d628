package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/allocnet/allocnet/internal/smallfile"
)

const (
	// maxSize is far above the size of any real configuration. It bounds the memory for
	// a file that is in the directory by mistake.
	maxSize = 1 << 20

	// settleTime is the minimum age of a change after which an equal stamp proves equal
	// content. Two writes within one tick of the kernel's clock have equal timestamps.
	settleTime = time.Second
)

// file is a configuration file of a directory, with its state at the last read.
type file struct {
	path    string
	sidecar string // its sidecar directory, "" if it has none
	stamps  []stamp
	settled bool // whether equal stamps mean equal content

	good *Network // last valid content; nil if there was none
	err  error    // of the last read
}

// refresh reads the file if it has changed.
func (f *file) refresh(now time.Time) {
	if f.settled && slices.Equal(f.stamps, stampsOf(f.path, f.sidecar)) {
		return
	}
	n, err := f.read()
	f.err = err
	if err == nil {
		f.good = n
	}
	f.settled = settled(f.stamps, now) && !isIOError(err)
}

// read takes each stamp before it reads the content, so that the next refresh notices a
// change in between.
func (f *file) read() (*Network, error) {
	f.sidecar, f.stamps = "", stampsOf(f.path, "")
	d, err := readDraft(f.path)
	if err != nil {
		return nil, err
	}
	if !d.inlineOnly {
		f.sidecar = filepath.Join(filepath.Dir(f.path), d.name)
		f.stamps = append(f.stamps, sidecarStamps(f.sidecar)...)
		if err := d.addSidecar(f.sidecar); err != nil {
			return nil, err
		}
	}
	if f.good != nil { // keep the Network if the content is the same
		if data, err := d.encode(); err == nil && bytes.Equal(data, f.good.Bytes) {
			return f.good, nil
		}
	}
	n, err := d.network()
	if err != nil {
		return nil, err
	}
	n.File = f.path
	return n, nil
}

// problem returns the error of the last read; nil if there was none.
func (f *file) problem() *FileError {
	switch {
	case f.err == nil:
		return nil
	case f.good != nil:
		return &FileError{File: f.path, Err: fmt.Errorf("%w (the last valid content of network %q stays active)", f.err, f.good.Name)}
	default:
		return &FileError{File: f.path, Err: f.err}
	}
}

// readDraft parses a file as a list or as a single plugin, depending on its extension.
func readDraft(path string) (*draft, error) {
	data, err := readRegular(path)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(path) == ".conflist" {
		return parseList(data)
	}
	return parsePlugin(data)
}

// addSidecar appends the plugins of the sidecar directory dir, by file name.
func (d *draft) addSidecar(dir string) error {
	paths, err := sidecarFiles(dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		data, err := readRegular(path)
		if err == nil {
			_, err = pluginOf(data)
		}
		if err != nil {
			return fmt.Errorf("sidecar plugin %q: %w", path, err)
		}
		d.plugins = append(d.plugins, data)
	}
	return nil
}

// sidecarFiles returns the sorted paths of the plugin files in dir. A missing directory
// is not an error.
func sidecarFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read sidecar directory: %w: make it readable, or set loadOnlyInlinedPlugins", err)
	}
	var paths []string
	for _, e := range entries {
		if !e.IsDir() && filepath.Ext(e.Name()) == ".conf" {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// readRegular reads a regular file. Its errors contain the remedy.
func readRegular(path string) ([]byte, error) {
	data, err := smallfile.Read(path, maxSize)
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, smallfile.ErrNotRegular):
		return nil, fmt.Errorf("%w: remove or rename it", err)
	case errors.Is(err, smallfile.ErrTooLarge):
		return nil, errors.New("larger than 1 MiB: remove it or shorten it")
	}
	return nil, statError(path, err)
}

// statError adds a remedy to an error of opening a file. It detects a dangling symlink.
func statError(path string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: make it readable", err)
	}
	if target, linkErr := os.Readlink(path); linkErr == nil {
		return fmt.Errorf("dangling symlink to %q: %w: create the target, or remove the symlink", target, err)
	}
	return fmt.Errorf("%w: make it readable, or remove it", err)
}

// isIOError reports whether an error was returned by the file system. Such an error may
// disappear without a change of the file.
func isIOError(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path)
}
