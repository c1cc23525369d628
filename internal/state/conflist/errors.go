package conflist

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNotFound is what errors.Is finds in every error of Lookup.
var ErrNotFound = errors.New("network not found")

// ErrShadowed is what errors.Is finds in the FileError of a valid file whose
// network name an earlier file has already.
var ErrShadowed = errors.New("network name is taken by an earlier file")

// FileError says why a file, or the directory itself, was not used.
type FileError struct {
	File string // path
	Err  error  // the reason, and what to do about it
}

// Error names the file, the reason and the remedy.
func (e *FileError) Error() string {
	return fmt.Sprintf("network configuration %q: %v", e.File, e.Err)
}

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// NotFoundError is the error of Lookup, as a pointer. errors.Is finds
// ErrNotFound in it.
type NotFoundError struct {
	Name   string       // the name asked for; "" is the default network
	Dir    string       // the directory searched
	Known  []string     // the names that can be asked for, the embedded one last
	Broken []*FileError // what was skipped; its File is Dir when the directory was not readable

	ours  string // the file that has the name, and has allocnet do the work
	empty bool   // the directory is readable and holds no configuration file
}

// maxListed bounds how many things of a kind an error message lists.
const maxListed = 8

// Error names the directory, what it holds, what was skipped and what to do.
func (e *NotFoundError) Error() string {
	parts := []string{fmt.Sprintf("network %q not found in %q", e.Name, e.Dir)}
	if e.Name == "" {
		parts[0] = fmt.Sprintf("no default network in %q", e.Dir)
	}
	if e.empty {
		parts = append(parts, "the directory holds no .conflist, .conf or .json file: put a network configuration list there")
	}
	if e.ours != "" {
		parts = append(parts, fmt.Sprintf("%q has it, whose plugin is allocnet itself: name the network that it delegates to", e.ours))
	}
	if len(e.Known) > 0 {
		parts = append(parts, "known by name: "+listed(e.Known, strconv.Quote))
	}
	if len(e.Broken) > 0 {
		parts = append(parts, "skipped, and may hold it: "+listed(e.Broken, e.reason))
	}
	return strings.Join(parts, "; ")
}

// Unwrap returns ErrNotFound.
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// reason leaves out the directory of a file, which the message has named.
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
