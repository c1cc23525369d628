package configurator

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/cleanup"
)

// runtimesCache is libcni's default cache directory. It contains the result of each
// attachment of a runtime until DEL. libcni.CacheDir is a variable, which this process
// may have changed.
const runtimesCache = "/var/lib/cni"

// isRuntimes reports whether a runtime has attached a container with that ID. Plugin
// binaries and Configurators with the default state directory use the same owner names,
// so objects that a runtime created through the binaries look like those of an
// allocation without a record.
func (c *Configurator) isRuntimes(id string) (bool, error) {
	attached, err := cleanup.Attached(runtimesCache, id)
	if err != nil {
		return false, fmt.Errorf("find out whether a runtime manages the container: %w", err)
	}
	if attached {
		c.cfg.Logger.Debug("no record, but a cached result of libcni: left to its runtime", "alloc", id, "cache", runtimesCache)
	}
	return attached, nil
}

// runtimesAttachments returns the attachments that runtimes may have to a network.
func runtimesAttachments(network string) ([]types.GCAttachment, error) {
	attached, err := cleanup.CachedAttachments(runtimesCache, network)
	if err != nil {
		return nil, fmt.Errorf("look for attachments of runtimes: %w", err)
	}
	return attached, nil
}
