package configurator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// gcTimeout bounds CNI GC of a network: first the wait for running operations on it, then the
// run of the plugins. No ADD or DEL may run on the network meanwhile (CNI specification,
// "GC").
const gcTimeout = 10 * time.Second

// gcPlugins runs CNI GC on the networks whose configuration has CNI version 1.1 or later; of
// several with the same name, on the last. Native plugins could also do it for older
// versions, but other runtimes do not expect that. The attachments of kept allocations stay.
func (c *Configurator) gcPlugins(ctx context.Context, networks []*conflist.Network, s Scope, kept []string) error {
	byName := map[string]*conflist.Network{}
	for _, n := range networks {
		if knows, err := version.GreaterThanOrEqualTo(n.List.CNIVersion, "1.1.0"); err == nil && knows && !n.List.DisableGC {
			byName[n.Name] = n
		}
	}
	var errs []error
	// The order of a map is random, so a network that hangs does not always delay the
	// same other networks.
	for name, n := range byName {
		err := ctx.Err()
		if err == nil {
			err = c.gcNetwork(ctx, n, s, kept)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("GC of the plugins of network %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// gcNetwork runs CNI GC of one network while no other operation uses the network.
func (c *Configurator) gcNetwork(ctx context.Context, n *conflist.Network, s Scope, kept []string) error {
	lockCtx, cancel := context.WithTimeout(ctx, c.gcTimeout)
	defer cancel()
	unlock, err := c.store.LockNetwork(lockCtx, n.Name)
	if err != nil {
		return fmt.Errorf("running operations did not end in time: %w", err)
	}
	defer unlock()
	records, err := c.store.List()
	if err != nil {
		return err // with an incomplete list, plugins would remove live attachments
	}
	attached, dirs := slices.Clone(s.Attachments), []string(nil)
	for _, r := range records {
		for _, a := range r.Attachments {
			if a.Network != n.Name {
				continue
			}
			dirs = append(dirs, r.PluginDirs...)
			attachment := types.GCAttachment{ContainerID: r.Container(), IfName: a.IfName}
			if !slices.Contains(s.Attachments, attachment) {
				attached = append(attached, attachment)
			}
		}
	}
	unrecorded, err := c.unrecordedAttachments(ctx, n.Name, kept, records)
	if err != nil {
		return err
	}
	attached = append(attached, unrecorded...)
	if s.Name == "" { // Scope.Attachments may lack those of runtimes
		cached, err := runtimesAttachments(n.Name)
		if err != nil {
			return err
		}
		attached = append(attached, cached...)
	}
	dirs = distinct(append(dirs, s.PluginDirs...))
	ctx, cancel = context.WithTimeout(ctx, min(c.gcTimeout, c.cfg.Timeout))
	defer cancel()
	return c.engineOf(n).GC(ctx, pluginexec.WithInstance(c.pluginDirs(dirs, pluginTypes(n)...), c.instance), n, attached)
}

// unrecordedAttachments returns the attachments to a network of those kept allocations that have no record,
// from the owners of objects in the kernel.
func (c *Configurator) unrecordedAttachments(ctx context.Context, network string, kept []string, records []*record.Record) ([]types.GCAttachment, error) {
	kept = slices.DeleteFunc(slices.Clone(kept), func(id string) bool {
		return slices.ContainsFunc(records, func(r *record.Record) bool { return r.ID == id })
	})
	if len(kept) == 0 {
		return nil, nil
	}
	owned, err := cleanup.OwnedAttachments(ctx, network, c.cfg.StateDir)
	allocationOf := c.allocationsOfOwners()
	return slices.DeleteFunc(owned, func(a types.GCAttachment) bool {
		return !slices.Contains(kept, a.ContainerID) && !slices.Contains(kept, allocationOf(a.ContainerID))
	}), err
}
