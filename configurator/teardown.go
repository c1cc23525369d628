package configurator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Teardown removes everything that an allocation has on the host. It runs DEL with the
// configuration and arguments that ADD got, audits the host, and removes leftovers of DEL
// itself. If the allocation has a record, Teardown uses only its ID, Wait and OwnNetns, and
// with OwnNetns also Netns, which must lead to the recorded namespace. The other fields help
// to find leftovers if the record is lost. Teardown of an allocation that was never set up
// succeeds.
//
// Teardown returns when the allocation is disconnected: its host ports are free, its
// elements and tracked connections are gone, nothing is sent or answered over its links, and
// the record is in PhaseDeleting. A guarded port of a bridge may still receive broadcasts and
// multicasts until it is deleted. Links and addresses are deleted in the background, in
// batches, because the kernel takes some 20 milliseconds to delete a link. Until then no
// other allocation gets the addresses. A Setup of the same ID, or in the same network
// namespace, waits for the deletion. If it fails, the Configurator logs the error and tries
// again; Close waits for it; after the death of the process, Recover and GC finish it.
// Teardown deletes everything before it returns if Allocation.Wait or Config.OneShot is
// set, if plugins run as binaries or with iptables, or if Config.Backlog allocations wait
// already.
//
// If something could not be removed, Teardown returns ErrIncomplete and keeps the record, so
// that it can be called again. The same applies if a plugin fails whose leftovers only the
// plugin itself can find. If there is neither a record nor a leftover, and such a plugin is
// not installed, Teardown returns ErrPluginNotInstalled and writes no record: the next call
// uses the configuration of its time. If the context has ended before the call, Teardown
// changes nothing. If it ends during the call, the removal of leftovers may take another 3
// seconds.
//
// Runtimes repeat calls, so a Teardown without a record succeeds without a search if the
// same Teardown has succeeded within the last minute, and no Setup of the ID has run since
// in this Configurator. It does not find what another process has set up meanwhile if the
// record of that was lost; GC does.
func (c *Configurator) Teardown(ctx context.Context, a Allocation) error {
	return c.operation(ctx, "teardown", a.ID, func(ctx context.Context) error { return c.lockAndTeardown(ctx, a) })
}

// TeardownGone tears an allocation down if its network namespace no longer exists, and
// reports whether that was so. It checks the namespace while it holds the lock of the
// allocation. If the namespace exists, or if there is no record, it does nothing.
func (c *Configurator) TeardownGone(ctx context.Context, id string) (gone bool, err error) {
	if r, err := c.load(id); err != nil || r.Netns == "" || !netns.IsGone(r) {
		return false, ignoreNotFound(err)
	}
	err = c.operation(ctx, "teardown", id, func(ctx context.Context) error {
		unlock, err := c.lock(ctx, id)
		if err != nil {
			return err
		}
		defer unlock()
		r, err := c.load(id)
		if gone = err == nil && r.Netns != "" && netns.IsGone(r); !gone {
			return ignoreNotFound(err)
		}
		return c.remove(ctx, c.planToRemove(r))
	})
	return gone, err
}

func ignoreNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (c *Configurator) lockAndTeardown(ctx context.Context, a Allocation) error {
	if err := errors.Join(plan.ValidateID(a.ID), ctx.Err()); err != nil {
		return err
	}
	if err := c.requirePrivileges(); err != nil {
		return err
	}
	unlock, err := c.lock(ctx, a.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if a.OwnNetns {
		if err := c.netns.AddForTeardown(a); err != nil {
			return err
		}
	}
	if err = c.teardown(ctx, a); err == nil {
		c.teardowns.note(a.ID, c.requestOf(&a), c.now())
	}
	if err == nil && a.OwnNetns {
		_, err = c.netns.Destroy(a.ID, netns.Every)
	}
	return err
}

func (c *Configurator) teardown(ctx context.Context, a Allocation) error {
	r, err := c.store.Get(a.ID)
	switch {
	case err == nil:
		return c.removeRecorded(ctx, &a, r)
	case unreadable(err):
		if a.Netns == "" {
			return withoutNetns(err)
		}
		c.cfg.Logger.Warn("record cannot be read; tearing down everything that belongs to the allocation", "alloc", a.ID, "error", err)
		return c.removeUnrecorded(ctx, a)
	case errors.Is(err, fs.ErrNotExist) && c.teardowns.has(a.ID, c.requestOf(&a), c.now()):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return c.removeUnrecorded(ctx, a)
	}
	return err
}

// removeRecorded tears down an allocation that has a record.
func (c *Configurator) removeRecorded(ctx context.Context, a *Allocation, r *record.Record) error {
	p, interrupted := c.planOfRemoval(r)
	if !a.Wait && (!interrupted || c.acknowledge(ctx, p)) {
		return nil
	}
	return c.remove(ctx, p)
}

// withoutNetns is the error for a record that cannot be read if the caller does not give the
// path of the network namespace.
func withoutNetns(err error) error {
	return fmt.Errorf("%w: give the network namespace of the allocation to tear it down without the record", err)
}

// remove detaches an allocation and deletes its record.
func (c *Configurator) remove(ctx context.Context, p *plan.Plan) error {
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return err
	}
	defer unlock()
	return c.removeLocked(ctx, p)
}

// removeLocked is remove for a caller that holds the locks of the networks.
func (c *Configurator) removeLocked(ctx context.Context, p *plan.Plan) error {
	if err := c.removeNetworks(ctx, p); err != nil {
		return err
	}
	return c.deleteRecord(p.ID)
}

// removeUnrecorded tears down an allocation without a usable record, from the fields of the
// Allocation and the current configuration. If no object on the host carries the ID, it does
// not touch the network namespace, because that may belong to another program.
//
// If nothing is found, removeUnrecorded succeeds if package cleanup can find all
// leftovers of the plugins, even if a plugin is not installed. Other plugins may hold
// objects that only they can find, such as a lease on another host; if such a plugin is
// not installed, removeUnrecorded returns an error.
func (c *Configurator) removeUnrecorded(ctx context.Context, a Allocation) error {
	if slot := c.takenSlot(a.ID); slot != "" {
		if err := c.removeUnrecordedAs(ctx, a, slot); err != nil {
			return err
		}
	}
	return c.removeUnrecordedAs(ctx, a, "")
}

// removeUnrecordedAs is removeUnrecorded of what was set up with the network of a slot, or
// with none.
func (c *Configurator) removeUnrecordedAs(ctx context.Context, a Allocation, slot string) error {
	p := c.planWithoutRecord(a)
	p.Slot = slot
	if foreign, err := c.isOfAnother(p); foreign || err != nil {
		return err
	}
	err := c.retrace(ctx, p, &a)
	c.chooseEngine(p)
	if err != nil {
		return wrapIncomplete(a.ID, err)
	}
	evidence, err := c.dropForeignNetns(ctx, p)
	if err != nil {
		return wrapIncomplete(a.ID, err)
	}
	if !evidence && cleanup.Covers(c.cleanupTarget(p)) {
		return c.deleteRecord(a.ID) // the plugins cannot have left anything else; runtimes repeat their DELs
	}
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.removeNetworks(ctx, p); err != nil {
		if missing := c.installed(p); missing != nil && !evidence {
			// There is no sign of a Setup, and with this configuration none can have
			// succeeded. A record would make every later call use this configuration,
			// even after it was corrected.
			return fmt.Errorf("allocation %q: it has no leftovers on this host, but a plugin that may hold others cannot be run: %w", a.ID, missing)
		}
		return errors.Join(err, c.put(p.Record)) // so that GC can continue
	}
	return c.deleteRecord(a.ID)
}

// isOfAnother reports whether everything on the host that has the ID of an allocation without a record
// belongs to another allocation.
func (c *Configurator) isOfAnother(p *plan.Plan) (bool, error) {
	if _, err := c.store.Get(p.ID); !errors.Is(err, fs.ErrNotExist) {
		return false, nil // the record cannot be read
	}
	other, err := c.store.Namesake(p.Record)
	if other != "" {
		c.cfg.Logger.Warn("no record; everything on the host that has this ID belongs to another allocation", "alloc", p.ID, "other", other)
	}
	return other != "", err
}

// dropForeignNetns removes the network namespace from the record of planWithoutRecord, unless
// there is evidence on the host that the allocation was set up: the namespace may belong to
// another program.
func (c *Configurator) dropForeignNetns(ctx context.Context, p *plan.Plan) (evidence bool, err error) {
	if _, err := c.store.Get(p.ID); !errors.Is(err, fs.ErrNotExist) {
		return true, nil // a record that cannot be read is evidence, too
	}
	target := c.cleanupTarget(p)
	target.Netns = ""
	found, err := c.audit(ctx, target)
	if err != nil {
		return false, err
	}
	if len(found) == 0 {
		p.Netns = ""
	}
	return len(found) > 0, nil
}

// planWithoutRecord plans the teardown of an allocation without a record, from the fields of
// the Allocation and the current configuration.
func (c *Configurator) planWithoutRecord(a Allocation) *plan.Plan {
	ports, portErr := c.mappings(&a)
	r, requestErr := c.newRecord(&a, ports)
	p := &plan.Plan{Record: r}
	networksErr := errors.Join(p.AddConflists(&a), c.planNetworks(p, c.lookup))
	if networksErr == nil {
		p.NoteUnserved()
	}
	if err := errors.Join(portErr, requestErr); err != nil {
		c.cfg.Logger.Debug("no record; ignoring invalid parts of the request", "alloc", a.ID, "error", err)
	}
	if err := networksErr; err != nil {
		c.cfg.Logger.Debug("no record and no configuration; looking for leftovers by ID alone", "alloc", a.ID, "error", err)
		p.Drop()
	}
	p.Phase = record.Deleting
	return p
}

// removeNetworks removes the networks of an allocation. A nil error means that nothing is left; any
// other error is ErrIncomplete and joins all causes.
func (c *Configurator) removeNetworks(ctx context.Context, p *plan.Plan) error {
	return c.removeNetworksAfter(ctx, p, nil)
}

// removeNetworksAfter is removeNetworks after an ADD that failed with addErr, which contains the plugins that
// the ADD has reached.
func (c *Configurator) removeNetworksAfter(ctx context.Context, p *plan.Plan, addErr error) error {
	c.recordDeleting(p.Record)
	endFormerBoot(p.Record)
	release, err := netns.Open(p.Record)
	defer release()
	if err != nil && !netns.IsLost(err) {
		return wrapIncomplete(p.ID, err)
	}
	knowErr := c.recordAddresses(ctx, p)
	delErr := errors.Join(knowErr, c.step(ctx, StepDel, p.Record, func(ctx context.Context) error { return c.del(ctx, p) }))
	ctx, cancel := withTimeAfter(ctx, c.forceTimeout)
	defer cancel()
	if delErr == nil && p.Phase == record.Ready && c.runsInProcess(p) {
		return nil // every object is known, and the kernel has acknowledged its removal
	}
	target := c.cleanupTarget(p)
	flushErr := c.flushConntrack(ctx, target)
	var left []Leftover
	auditErr := c.step(ctx, StepAudit, p.Record, func(ctx context.Context) (err error) {
		left, err = c.audit(ctx, target)
		return err
	})
	if delErr == nil && auditErr == nil && len(left) == 0 {
		return wrapIncomplete(p.ID, flushErr)
	}
	return wrapIncomplete(p.ID, joinDistinct(c.step(ctx, StepForce, p.Record, func(ctx context.Context) error {
		return c.force(ctx, p.Record, target, failure{addErr, delErr})
	}), flushErr))
}

// recordDeleting records that the teardown of a ready allocation has begun. It only logs
// errors, because a full disk must not prevent a teardown.
func (c *Configurator) recordDeleting(r *record.Record) {
	if r.Phase != record.Ready || r.Acknowledged {
		return
	}
	if err := c.noteDeleting(r); err != nil {
		c.cfg.Logger.Warn("cannot record the beginning of the teardown; continuing", "alloc", r.ID, "error", err)
	}
}

func (c *Configurator) noteDeleting(r *record.Record) error {
	deleting := *r
	deleting.Phase, deleting.Updated = record.Deleting, c.now()
	return c.store.Update(&deleting)
}

// recordAddresses finds the addresses of an allocation whose ADD has no result, before DEL
// releases them. It records them for the case that this DEL is interrupted, too.
func (c *Configurator) recordAddresses(ctx context.Context, p *plan.Plan) error {
	if !slices.ContainsFunc(p.Attachments, func(a record.Attachment) bool { return a.Result == nil }) {
		return nil
	}
	found, err := bounded(ctx, c, func(ctx context.Context) ([]cleanup.Address, error) {
		return cleanup.Addresses(ctx, c.cleanupTarget(p))
	})
	for _, a := range found {
		if !slices.Contains(p.Addresses, a) {
			p.Addresses = append(p.Addresses, a)
		}
	}
	if len(found) == 0 {
		return err
	}
	if err := c.put(p.Record); err != nil {
		c.cfg.Logger.Warn("cannot record the addresses of the allocation; continuing", "alloc", p.ID, "error", err)
	}
	return err
}

// del runs DEL, for at most Config.Timeout.
func (c *Configurator) del(ctx context.Context, p *plan.Plan) error {
	if len(p.Attachments) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	req, requestErr := c.request(p)
	e, engineErr := c.engine(p)
	if err := errors.Join(requestErr, engineErr); err != nil {
		return err
	}
	if req.Interrupted = p.Phase != record.Ready; req.Interrupted {
		if err := c.dropReleasedAddresses(ctx, p, req); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return e.Del(ctx, req)
}

// dropReleasedAddresses removes the addresses that an earlier, interrupted DEL has released
// from the results of a request. They may belong to another allocation by now.
func (c *Configurator) dropReleasedAddresses(ctx context.Context, p *plan.Plan, req *engine.Request) error {
	released, err := cleanup.Released(ctx, c.cleanupTarget(p))
	if err != nil || len(released) == 0 {
		return err
	}
	for _, a := range req.Attachments {
		if a.Result != nil {
			a.Result.IPs = slices.DeleteFunc(a.Result.IPs, func(ip *types100.IPConfig) bool {
				address, _ := netip.AddrFromSlice(ip.Address.IP)
				return slices.Contains(released, address.Unmap())
			})
		}
	}
	return nil
}

// force removes the leftovers of DEL. It returns the error of DEL only if something is left
// after that, or may be left: if cleanup does not know all leftovers of a plugin, or if the
// process of a plugin does not end.
func (c *Configurator) force(ctx context.Context, r *record.Record, target cleanup.Target, f failure) error {
	delErr := f.del
	var stopErr error
	switch {
	case errors.Is(delErr, pluginexec.ErrAlive):
		stopErr = delErr
	case delErr != nil:
		stopErr = c.stopPlugins(r)
	}
	removed, forceErr := c.removeLeftovers(ctx, target)
	left, auditErr := c.audit(ctx, target)
	policyErr := c.leavePolicies(ctx, target)
	if delErr != nil {
		c.cfg.Logger.Warn("DEL failed", "alloc", r.ID, "error", redact.Text(delErr.Error()))
	}
	if len(removed) > 0 || len(left) > 0 {
		c.cfg.Logger.Warn("removed leftovers of DEL", "alloc", r.ID, "removed", len(removed), "left", len(left))
	}
	for _, l := range removed {
		c.cfg.Logger.Info("removed by force", "alloc", r.ID, "leftover", l.String())
	}
	c.noteForced(ctx, r.ID, removed)
	var leftErr error
	if len(left) > 0 {
		leftErr = &LeftoverError{ID: r.ID, Leftovers: left}
	}
	if leftErr == nil && auditErr == nil && stopErr == nil && policyErr == nil && (cleanup.Covers(target, policyType) || f.covered()) {
		return nil
	}
	return joinDistinct(delErr, stopErr, leftErr, forceErr, auditErr, policyErr)
}

// stopPlugins kills the plugin processes of an allocation that still run, because they could
// create again what cleanup removes. If the allocation is ready, it kills only those of DEL:
// an ADD may leave a process running on purpose.
func (c *Configurator) stopPlugins(r *record.Record) error {
	var commands []string
	if r.Phase == record.Ready {
		commands = []string{"DEL"}
	}
	return pluginexec.KillOrphans(pluginexec.Work{ID: r.Container(), Tag: c.processTagOf(r), IfNames: ownInterfaces(r)}, commands...)
}

// failure has the error of a DEL, and that of the failed ADD before it, if there was one.
type failure struct{ add, del error }

// covered reports whether, for every plugin whose DEL failed, either force can find
// all leftovers or ADD did not run the plugin. All other plugins have acknowledged
// their DEL.
func (f failure) covered() bool {
	return f.del != nil && eachDelError(f.del, func(e *engine.DelError) bool {
		var add *engine.AddError
		return cleanup.CoversPlugin(e.Config, policyType) || errors.As(f.add, &add) && !add.Reached(e.Place)
	})
}

// eachDelError reports whether err consists only of errors of plugins, and wanted returns
// true for all of them.
func eachDelError(err error, wanted func(*engine.DelError) bool) bool {
	switch e := err.(type) {
	case *engine.DelError:
		return wanted(e)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !eachDelError(err, wanted) })
	case interface{ Unwrap() error }:
		return e.Unwrap() != nil && eachDelError(e.Unwrap(), wanted)
	}
	return false
}

// cleanupTarget is the target of the cleanup of a plan. It is valid as long as the record's
// namespace is open.
func (c *Configurator) cleanupTarget(p *plan.Plan) cleanup.Target {
	t := cleanup.Target{ID: p.Container(), Ports: p.Ports, Addresses: p.Addresses, StateDir: c.cfg.StateDir, Instance: c.instanceOf(p.Record), CacheDirs: []string{libcni.CacheDir}}
	// Native plugins' links name their owner; other objects in the namespace may not belong
	// to the allocation.
	if p.Sandbox != nil && !c.runsInProcess(p) && p.Previous == nil {
		t.Netns = p.Sandbox.ProcPath()
	}
	for _, a := range p.Attachments {
		t.Attachments = append(t.Attachments, cleanup.Attachment{
			Network: a.Network, IfName: a.IfName, Config: a.Config, Result: a.Result,
		})
	}
	t.IfNames = ownInterfaces(p.Record)
	return t
}

// ownInterfaces returns the interfaces of an allocation whose container may have others, of other
// allocations; nil if its container is its own.
func ownInterfaces(r *record.Record) []string {
	if r.ContainerID == "" || r.Slot != "" {
		return nil
	}
	list := []string{cmp.Or(r.Interface, r.InterfacePrefix+"0")}
	for _, a := range r.Attachments {
		list = append(list, a.IfName)
	}
	return list
}
