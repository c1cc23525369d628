package cleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/names"
)

// Attached reports whether a cache directory of libcni has a result of a container with
// that ID, in any network. It returns an error if a file that may be such a result
// cannot be read.
func Attached(cacheDir, id string) (bool, error) {
	attached := false
	mayBe := func(name string) bool { return strings.Contains(name, "-"+id+"-") }
	err := eachCached(cacheDir, mayBe, func(_ string, content cacheContent) {
		// Without a kind, only the file name contains the ID.
		attached = attached || content.Kind != cacheKind || content.ContainerID == id
	})
	return attached, err
}

// CachedAttachments returns the attachments that have a result in a cache directory of
// libcni. It includes those of other networks, because the caller needs all existing
// attachments, and a runtime may use another name for a network. If only the file name
// identifies an attachment, it returns all attachments that the name can stand for in
// the network. If it returns an error, the list is incomplete.
func CachedAttachments(cacheDir, network string) ([]types.GCAttachment, error) {
	var list []types.GCAttachment
	note := func(id, ifName string) {
		if names.ValidateContainer(id) == nil && names.ValidateInterface(ifName) == nil {
			list = append(list, types.GCAttachment{ContainerID: id, IfName: ifName})
		}
	}
	err := eachCached(cacheDir, func(string) bool { return true }, func(name string, content cacheContent) {
		if content.Kind == cacheKind {
			note(content.ContainerID, content.IfName)
			return
		}
		rest, ok := strings.CutPrefix(name, network+"-")
		for i := range rest {
			if ok && rest[i] == '-' {
				note(rest[:i], rest[i+1:])
			}
		}
	})
	return list, err
}

// eachCached calls note for the cached results of a directory whose file names mayBe
// accepts.
func eachCached(cacheDir string, mayBe func(name string) bool, note func(name string, content cacheContent)) error {
	dir := filepath.Join(cacheDir, "results")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list cached results: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if entry.IsDir() || !mayBe(entry.Name()) {
			continue
		}
		content, err := readCache(filepath.Join(dir, entry.Name()))
		switch {
		case err == nil:
			note(entry.Name(), content)
		case !errors.Is(err, fs.ErrNotExist): // else a DEL has removed it meanwhile
			errs = append(errs, fmt.Errorf("%q in %s: %w", entry.Name(), dir, err))
		}
	}
	return errors.Join(errs...)
}
