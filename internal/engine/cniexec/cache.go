package cniexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/smallfile"
)

// libcni keeps the result of every ADD in a directory that all runtimes of a host
// share. The GC of another runtime, of a network with the same name, would delete the
// attachments of this process. go-cni does not allow another directory, so cache
// entries exist only while an operation runs; between operations, only the record of
// the allocation has the result. Package cleanup finds entries that a crash left.

// cacheFile returns the path of libcni's cache entry for attachment i.
func cacheFile(r *engine.Request, i int) string {
	name := fmt.Sprintf("%s-%s-%s", r.Attachments[i].Network.Name, r.ID, r.IfName(i))
	return filepath.Join(libcni.CacheDir, "results", name)
}

// maxCache is far above the size of a configuration and a result.
const maxCache = 16 << 20

// cacheEntry is the format of libcni's cache.
type cacheEntry struct {
	Kind           string           `json:"kind"`
	ContainerID    string           `json:"containerId"`
	Config         []byte           `json:"config"`
	IfName         string           `json:"ifName"`
	NetworkName    string           `json:"networkName"`
	NetNS          string           `json:"netns,omitempty"`
	CniArgs        [][2]string      `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]any   `json:"capabilityArgs,omitempty"`
	Result         *types100.Result `json:"result,omitempty"`
}

// takeCache reads and removes the cache entries that ADD has written. The result is nil
// for an entry that does not exist or is invalid.
func takeCache(r *engine.Request) ([]*types100.Result, error) {
	results := make([]*types100.Result, len(r.Attachments))
	for i := range r.Attachments {
		results[i] = readCache(cacheFile(r, i))
	}
	return results, dropCache(r)
}

func readCache(file string) *types100.Result {
	data, err := smallfile.ReadOwn(file, maxCache)
	if err != nil {
		return nil
	}
	var entry struct{ Result json.RawMessage }
	if json.Unmarshal(data, &entry) != nil {
		return nil
	}
	result, err := engine.ParseResult(entry.Result)
	if err != nil {
		return nil
	}
	return result
}

// writeCache writes the cache entries from which libcni reads the prevResult of CHECK
// and DEL. It uses no temporary files, because a crash would leave them.
func writeCache(r *engine.Request) error {
	for i, a := range r.Attachments {
		rt := r.RuntimeConf(i)
		data, err := json.Marshal(cacheEntry{
			Kind: libcni.CNICacheV1, ContainerID: r.ID, Config: a.Network.Bytes, IfName: rt.IfName,
			NetworkName: a.Network.Name, NetNS: r.Netns, CniArgs: rt.Args, CapabilityArgs: rt.CapabilityArgs,
			Result: a.Result,
		})
		if err == nil {
			err = os.MkdirAll(filepath.Dir(cacheFile(r, i)), 0o700)
		}
		if err == nil {
			err = smallfile.WriteOwn(cacheFile(r, i), data)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("write libcni's cache entry of network %q: %w", a.Network.Name, err), dropCache(r))
		}
	}
	return nil
}

// cached reports whether the cache entry of attachment i exists.
func cached(r *engine.Request, i int) bool {
	_, err := os.Lstat(cacheFile(r, i))
	return err == nil
}

// dropCache removes all entries of the request.
func dropCache(r *engine.Request) error {
	var errs []error
	for i := range r.Attachments {
		if err := os.Remove(cacheFile(r, i)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			errs = append(errs, fmt.Errorf("remove libcni's cache entry: %w", err))
		}
	}
	return errors.Join(errs...)
}
