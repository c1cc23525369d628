package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/allocnet/allocnet/internal/smallfile"
)

// cacheFinder finds the results that libcni caches for DEL.
type cacheFinder struct {
	*search
	found []ownFile
}

// cacheContent has the owner and the result from a cached result. Old versions of
// libcni stored only the result itself.
type cacheContent struct {
	Kind        string          `json:"kind"`
	ContainerID string          `json:"containerId"`
	IfName      string          `json:"ifName"`
	NetworkName string          `json:"networkName"`
	Result      json.RawMessage `json:"result"`
}

const cacheKind = "cniCacheV1"

// maxCache is the largest size of a cached result, with its configuration.
const maxCache = 16 << 20

func (f *cacheFinder) find(context.Context) ([]Leftover, error) {
	var errs []error
	f.found = nil
	for _, dir := range f.target.CacheDirs {
		files, err := f.inDir(filepath.Join(dir, "results"))
		f.found = append(f.found, files...)
		errs = append(errs, err)
	}
	f.addResultAddresses()
	return leftoverFiles(f.found), errors.Join(errs...)
}

// inDir finds the files of the target in one directory.
func (f *cacheFinder) inDir(dir string) ([]ownFile, error) {
	if len(f.attachments) == 0 {
		return f.byContent(dir)
	}
	var (
		files []ownFile
		errs  []error
	)
	for _, a := range f.attachments {
		file := ownFile{kind: KindCache, dir: dir, name: a.Network + "-" + f.target.ID + "-" + a.IfName, network: a.Network}
		if !isFileName(file.name) {
			continue
		}
		content, err := readCache(file.path())
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case content.belongs(f.target.ID, a.Network, a.IfName):
			files = append(files, file)
			if a.result == nil {
				a.result = parseResult(content.Result)
			}
		}
	}
	return files, errors.Join(errs...)
}

// byContent finds the files in a directory that contain the ID, for any network.
func (f *cacheFinder) byContent(dir string) ([]ownFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list cached results: %w", err)
	}
	var (
		files []ownFile
		errs  []error
	)
	for _, entry := range entries {
		file := ownFile{kind: KindCache, dir: dir, name: entry.Name()}
		if !strings.Contains(file.name, "-"+f.target.ID+"-") {
			continue
		}
		content, err := readCache(file.path())
		if err != nil && !isNone(err) {
			errs = append(errs, err)
		}
		if err == nil && content.Kind == cacheKind && content.ContainerID == f.target.ID && f.hasInterface(content.IfName) {
			file.network = content.NetworkName
			files = append(files, file)
		}
	}
	return files, errors.Join(errs...)
}

func readCache(path string) (cacheContent, error) {
	data, err := smallfile.ReadOwn(path, maxCache)
	if err != nil {
		return cacheContent{}, fmt.Errorf("read cached result: %w", err)
	}
	var content cacheContent
	if err := json.Unmarshal(data, &content); err != nil {
		// A file truncated by a crash is identified by its name.
		return cacheContent{}, nil
	}
	return content, nil
}

// belongs reports whether the content belongs to an attachment. The file name alone is
// ambiguous, because networks and IDs may contain the dash that separates them.
func (c cacheContent) belongs(id, network, ifName string) bool {
	return c.Kind != cacheKind || c.ContainerID == id && c.NetworkName == network && c.IfName == ifName
}

func (f *cacheFinder) remove(context.Context) ([]Leftover, error) { return removeFiles(f.found) }
