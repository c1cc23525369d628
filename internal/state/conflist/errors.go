package conflist

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNotFound matches every error of Lookup in errors.Is.
var ErrNotFound = errors.New("network not found")

// ErrShadowed matches, in errors.Is, the FileError of a valid file whose network name
// an earlier file has.
var ErrShadowed = errors.New("network name is taken by an earlier file")

// FileError reports why a file, or the directory itself, was not used.
type FileError struct {
	File string // path
	Err  error  // the reason and the remedy
}

// Error names the file, the reason and the remedy.
func (e *FileError) Error() string {
	return fmt.Sprintf("network configuration %q: %v", e.File, e.Err)
}

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// NotFoundError is the error of Lookup, as a pointer. It matches ErrNotFound in
// errors.Is.
type NotFoundError struct {
	Name   string       // requested name; "" is the default network
	Dir    string       // searched directory
	Known  []string     // existing names, the embedded one last
	Broken []*FileError // skipped files; File is Dir if the directory is not readable

	ours  string // file that has the name, but whose plugin is allocnet
	empty bool   // whether the directory is readable and has no configuration file
}

// maxListed bounds the number of names or files in an error message.
const maxListed = 8

// Error names the directory, the existing networks, the skipped files and the remedy.
func (e *NotFoundError) Error() string {
	parts := []string{fmt.Sprintf("network %q not found in %q", e.Name, e.Dir)}
	if e.Name == "" {
		parts[0] = fmt.Sprintf("no default network in %q", e.Dir)
	}
	if e.missing() {
		parts = append(parts, "the directory does not exist: create it, and put a network configuration list there")
	}
	if e.empty {
		parts = append(parts, "the directory holds no .conflist, .conf or .json file: put a network configuration list there")
	}
	if e.ours != "" {
		parts = append(parts, fmt.Sprintf("%q has that name, but its plugin is allocnet itself: name the network that it delegates to", e.ours))
	}
	if len(e.Known) > 0 {
		parts = append(parts, "known by name: "+listed(e.Known, strconv.Quote))
	}
	if len(e.Broken) > 0 && !e.missing() {
		parts = append(parts, "skipped, and may hold it: "+listed(e.Broken, e.reason))
	}
	return strings.Join(parts, "; ")
}

// missing reports whether the directory does not exist.
func (e *NotFoundError) missing() bool {
	return len(e.Broken) == 1 && e.Broken[0].File == e.Dir && errors.Is(e.Broken[0].Err, fs.ErrNotExist)
}

// Unwrap returns ErrNotFound.
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// reason omits the directory of a file, because the message contains it already.
func (e *NotFoundError) reason(f *FileError) string {
	if f.File == e.Dir {
		return fmt.Sprintf("the whole directory (%v)", f.Err)
	}
	return fmt.Sprintf("%s (%v)", filepath.Base(f.File), f.Err)
}

func listed[T any](items []T, text func(T) string) string {
	var texts []string
	for _, item := range items[:min(len(items), maxListed)] {
		texts = append(texts, text(item))
	}
	if more := len(items) - maxListed; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}
