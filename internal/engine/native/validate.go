package native

import (
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Validate returns what every ADD of a network refuses in the configurations of its plugins, without looking
// at the host. continues reports that other plugins may have run before those of the network. Validate does not
// interpret the configuration of a plugin that runs as a binary, nor of the IPAM plugin that it runs.
func (e *Engine) Validate(n *conflist.Network, continues bool) error {
	derived := e.network(n)
	if derived.err != nil {
		return fmt.Errorf("network %q: %w", n.Name, derived.err)
	}
	var errs []error
	for i, p := range n.List.Plugins {
		err := derived.plugins[i].Validate(p.Network.Type, p.Network.IPAM.Type, sdk.Chain{
			Plugins: e.plugins, First: i == 0 && !continues, Policed: derived.policed, Requested: p.Network.Capabilities["ipRanges"],
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}
