package configurator

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/cleanup"
)

// runtimesCache is libcni's default cache directory, where it keeps the result of
// each attachment of a runtime until its DEL. libcni.CacheDir may name one of our own.
const runtimesCache = "/var/lib/cni"

// isRuntimes reports whether a runtime has attached a container of that ID. Plugin
// binaries and the users of the default state directory name the same owners, so what
// a runtime made with the binaries looks like an allocation without a record.
func (c *Configurator) isRuntimes(id string) (bool, error) {
	attached, err := cleanup.Attached(runtimesCache, id)
	if err != nil {
		return false, fmt.Errorf("tell an allocation without a record from a runtime's container: %w", err)
	}
	if attached {
		c.cfg.Logger.Debug("no record, but a cached result of libcni: left to its runtime", "alloc", id, "cache", runtimesCache)
	}
	return attached, nil
}

// runtimesAttachments are those that runtimes may have in a network.
func runtimesAttachments(network string) ([]types.GCAttachment, error) {
	attached, err := cleanup.CachedAttachments(runtimesCache, network)
	if err != nil {
		return nil, fmt.Errorf("look for attachments of runtimes: %w", err)
	}
	return attached, nil
}
