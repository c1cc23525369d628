package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Teardown takes away all that an allocation has on the host: DEL with exactly
// what ADD was given, then an audit, and by force what DEL left. Only the ID of
// the allocation has to be given where it has a record; the rest serves where
// the record was lost. What was never set up is no error.
//
// An error says that something could not be removed, or that a plugin which
// allocnet cannot stand in for failed; it is ErrIncomplete, the record is kept,
// and Teardown can be called again. Where there is neither a record nor anything on
// the host, and such a plugin is not installed, it is ErrPluginNotInstalled instead,
// and no record is made: the next call goes by the configuration of its time. A
// context that has ended before Teardown began leaves everything as it is.
func (c *Configurator) Teardown(ctx context.Context, a Allocation) error {
	return c.operation(ctx, "teardown", a.ID, func(ctx context.Context) error { return c.lockAndTeardown(ctx, a) })
}

// TeardownGone is Teardown of an allocation whose network namespace is gone. It looks
// for the namespace while it holds the allocation's lock, and reports whether it was
// gone. If it was not, or there is no record, nothing is done.
func (c *Configurator) TeardownGone(ctx context.Context, id string) (gone bool, err error) {
	if r, err := c.load(id); err != nil || r.Netns == "" || !isGone(r) {
		return false, ignoreNotFound(err)
	}
	err = c.operation(ctx, "teardown", id, func(ctx context.Context) error {
		unlock, err := c.lock(ctx, id)
		if err != nil {
			return err
		}
		defer unlock()
		r, err := c.load(id)
		if gone = err == nil && r.Netns != "" && isGone(r); !gone {
			return ignoreNotFound(err)
		}
		return c.remove(ctx, c.planOf(r))
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
	if err := errors.Join(validateID(a.ID), ctx.Err()); err != nil {
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
		if err := c.noteNetnsForTeardown(a); err != nil {
			return err
		}
	}
	err = c.teardown(ctx, a)
	if err == nil {
		c.teardowns.note(a.ID, c.requestOf(&a), c.now())
	}
	if err == nil && a.OwnNetns {
		_, err = c.destroyNotedNetns(a.ID, every)
	}
	return err
}

func (c *Configurator) teardown(ctx context.Context, a Allocation) error {
	r, err := c.store.Get(a.ID)
	switch {
	case err == nil:
		return c.remove(ctx, c.planOf(r))
	case unreadable(err):
		if a.Netns == "" {
			return withoutNetns(err)
		}
		c.cfg.Logger.Warn("record cannot be read; taking down what it may stand for", "alloc", a.ID, "error", err)
		return c.removeUnrecorded(ctx, a)
	case errors.Is(err, fs.ErrNotExist) && c.teardowns.has(a.ID, c.requestOf(&a), c.now()):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return c.removeUnrecorded(ctx, a)
	}
	return err
}

// withoutNetns is the error for a record that cannot be read, if the caller does not
// name the network namespace.
func withoutNetns(err error) error {
	return fmt.Errorf("%w: tell the network namespace of the allocation to have it torn down without the record", err)
}

// remove detaches a recorded allocation and removes its record.
func (c *Configurator) remove(ctx context.Context, p *plan) error {
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return err
	}
	defer unlock()
	return c.removeLocked(ctx, p)
}

// removeLocked is remove for who shares the networks.
func (c *Configurator) removeLocked(ctx context.Context, p *plan) error {
	if err := c.detach(ctx, p); err != nil {
		return err
	}
	return c.store.Delete(p.ID)
}

// forget takes down an allocation without a usable record, with what the
// caller says and today's configuration. Without anything on the host that bears
// the ID, the network namespace is not touched: it may be somebody else's.
//
// That nothing is found is success where cleanup knows all that the plugins can
// leave, even if one of them is not installed. Another one may hold something that
// only it knows of, an address or a lease elsewhere: then that it cannot be asked is
// an error.
func (c *Configurator) removeUnrecorded(ctx context.Context, a Allocation) error {
	p := c.planWithoutRecord(a)
	if err := c.retrace(ctx, p, &a); err != nil {
		return wrapIncomplete(a.ID, err)
	}
	evidence, err := c.dropForeignNetns(ctx, p)
	if err != nil {
		return wrapIncomplete(a.ID, err)
	}
	if !evidence && cleanup.Covers(c.cleanupTarget(p)) {
		return c.store.Delete(a.ID) // the plugins can have left nothing else: runtimes repeat their DELs
	}
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.detach(ctx, p); err != nil {
		if missing := c.installed(p); missing != nil && !evidence {
			// Nothing tells that it ever was set up, and with this configuration it cannot
			// have been. A record would have every later try go by it, mended or not.
			return fmt.Errorf("allocation %q: nothing of it is on this host, and what else there may be cannot be asked for: %w", a.ID, missing)
		}
		return errors.Join(err, c.put(p.Record)) // for GC to go on with
	}
	return c.store.Delete(a.ID)
}

// dropForeignNetns drops the network namespace from a record that was made up, unless there
// is evidence, something on the host, that the allocation was set up.
func (c *Configurator) dropForeignNetns(ctx context.Context, p *plan) (evidence bool, err error) {
	if _, err := c.store.Get(p.ID); !errors.Is(err, fs.ErrNotExist) {
		return true, nil // a record that cannot be read is evidence enough
	}
	target := c.cleanupTarget(p)
	target.Netns = ""
	found, err := cleanup.Audit(ctx, target)
	if err != nil {
		return false, err
	}
	if len(found) == 0 {
		p.Netns = ""
	}
	return len(found) > 0, nil
}

// guess plans the teardown of an allocation without a record: by what the caller says and
// today's configuration.
func (c *Configurator) planWithoutRecord(a Allocation) *plan {
	ports, portErr := c.mappings(&a)
	r, requestErr := c.newRecord(&a, ports)
	p := &plan{Record: r}
	networksErr := errors.Join(c.planConflists(p, &a), c.planNetworks(p))
	if networksErr == nil {
		noteUnserved(p)
	}
	if err := errors.Join(portErr, requestErr); err != nil {
		c.cfg.Logger.Debug("no record; guessing without what cannot be used", "alloc", a.ID, "error", err)
	}
	if err := networksErr; err != nil {
		c.cfg.Logger.Debug("no record and no configuration; looking for leftovers by ID alone", "alloc", a.ID, "error", err)
		p.drop()
	}
	p.Phase = record.Deleting
	return p
}

// forceTimeout is what cleanup may take when the caller's context has ended. It
// runs no plugin, so it cannot hang like one.
const forceTimeout = 3 * time.Second

// detach takes away the networks of an allocation. A nil error means that
// nothing is left; any other is ErrIncomplete and holds every cause.
func (c *Configurator) detach(ctx context.Context, p *plan) error {
	return c.detachAfter(ctx, p, nil)
}

// detachAfter is detach after an ADD that ended with an error, which may tell how
// far it came.
func (c *Configurator) detachAfter(ctx context.Context, p *plan, addErr error) error {
	c.recordDeleting(p.Record)
	release, err := openNetns(p.Record)
	defer release()
	if err != nil && !isLost(err) {
		return wrapIncomplete(p.ID, err)
	}
	knowErr := c.recordAddresses(ctx, p)
	delErr := errors.Join(knowErr, c.step(ctx, StepDel, p.Record, func(ctx context.Context) error { return c.del(ctx, p) }))
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), forceTimeout)
		defer cancel()
	}
	if delErr == nil && p.Phase == record.Ready && c.runsInProcess(p) {
		return nil // what was made is known, and its removal acknowledged
	}
	target := c.cleanupTarget(p)
	flushErr := cleanup.FlushConntrack(ctx, target)
	var left []Leftover
	auditErr := c.step(ctx, StepAudit, p.Record, func(ctx context.Context) (err error) {
		left, err = cleanup.Audit(ctx, target)
		return err
	})
	if delErr == nil && auditErr == nil && len(left) == 0 {
		return wrapIncomplete(p.ID, flushErr)
	}
	return wrapIncomplete(p.ID, joinDistinct(c.step(ctx, StepForce, p.Record, func(ctx context.Context) error {
		return c.force(ctx, p.Record, target, failure{addErr, delErr})
	}), flushErr))
}

// recordDeleting says in the record of a ready allocation that it no longer is.
// A full disk must not keep anything alive, so that it fails is only logged.
func (c *Configurator) recordDeleting(r *record.Record) {
	if r.Phase != record.Ready {
		return
	}
	deleting := *r
	deleting.Phase = record.Deleting
	if err := c.put(&deleting); err != nil {
		c.cfg.Logger.Warn("teardown goes on without recording that it began", "alloc", r.ID, "error", err)
	}
}

// recordAddresses finds the addresses of an allocation whose ADD has no result
// before DEL gives them back, and records them, for the case that this DEL does
// not end either.
func (c *Configurator) recordAddresses(ctx context.Context, p *plan) error {
	if !slices.ContainsFunc(p.Attachments, func(a record.Attachment) bool { return a.Result == nil }) {
		return nil
	}
	found, err := cleanup.Addresses(ctx, c.cleanupTarget(p))
	for _, a := range found {
		if !slices.Contains(p.Addresses, a) {
			p.Addresses = append(p.Addresses, a)
		}
	}
	if len(found) == 0 {
		return err
	}
	if err := c.put(p.Record); err != nil {
		c.cfg.Logger.Warn("teardown goes on without recording the addresses", "alloc", p.ID, "error", err)
	}
	return err
}

// del runs DEL within its time.
func (c *Configurator) del(ctx context.Context, p *plan) error {
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

// dropReleasedAddresses takes the addresses out of the results of an interrupted operation
// that an earlier DEL gave back: by now they may be another allocation's.
func (c *Configurator) dropReleasedAddresses(ctx context.Context, p *plan, req *engine.Request) error {
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

// force removes what DEL left. The error of DEL counts only when something is
// left after that, or may be: where a plugin is at work that cleanup does not
// know, or whose process does not end.
func (c *Configurator) force(ctx context.Context, r *record.Record, target cleanup.Target, f failure) error {
	delErr := f.del
	var stopErr error
	switch {
	case errors.Is(delErr, pluginexec.ErrAlive):
		stopErr = delErr
	case delErr != nil:
		stopErr = c.stopPlugins(r)
	}
	removed, forceErr := cleanup.Force(ctx, target)
	left, auditErr := cleanup.Audit(ctx, target)
	if delErr != nil {
		c.cfg.Logger.Warn("DEL failed", "alloc", r.ID, "error", redact.Text(delErr.Error()))
	}
	if len(removed) > 0 || len(left) > 0 {
		c.cfg.Logger.Warn("cleaned up by force what DEL did not remove", "alloc", r.ID, "removed", len(removed), "left", len(left))
	}
	for _, l := range removed {
		c.cfg.Logger.Info("removed by force", "alloc", r.ID, "leftover", l.String())
	}
	if len(removed) > 0 {
		c.cfg.OnForced(r.ID, removed)
	}
	var leftErr error
	if len(left) > 0 {
		leftErr = &LeftoverError{ID: r.ID, Leftovers: left}
	}
	if leftErr == nil && auditErr == nil && stopErr == nil && (cleanup.Covers(target) || f.covered()) {
		return nil
	}
	return joinDistinct(delErr, stopErr, leftErr, forceErr, auditErr)
}

// stopPlugins kills the plugins that are still at work for an allocation, because
// they may make again what cleanup removes. Of a ready one these are those of DEL:
// what its ADD left running, it may have left on purpose.
func (c *Configurator) stopPlugins(r *record.Record) error {
	var commands []string
	if r.Phase == record.Ready {
		commands = []string{"DEL"}
	}
	return pluginexec.KillOrphans(pluginexec.Work{ID: r.Container(), Mark: c.processTagOf(r)}, commands...)
}

// failure is the error of a DEL, and that of the ADD before it, if there was one.
type failure struct{ add, del error }

// covered reports whether cleanup stands in for every plugin whose DEL failed, or
// ADD did not run it. The others have acknowledged theirs.
func (f failure) covered() bool {
	return f.del != nil && eachDelError(f.del, func(e *engine.DelError) bool {
		var add *engine.AddError
		return cleanup.CoversPlugin(e.Config) || errors.As(f.add, &add) && !add.Reached(e.Place)
	})
}

// eachDelError reports whether err consists of errors of plugins and nothing else,
// and all are as wanted.
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

// cleanupTarget is what cleanup has to look for. It is good for as long as the
// record's namespace is open.
func (c *Configurator) cleanupTarget(p *plan) cleanup.Target {
	t := cleanup.Target{ID: p.Container(), Ports: p.Ports, Addresses: p.Addresses, StateDir: c.cfg.StateDir, Instance: c.instanceOf(p.Record), CacheDirs: []string{libcni.CacheDir}}
	// Links of ours name their owner; what else is in there may be another's.
	if p.Sandbox != nil && !c.runsInProcess(p) && p.Previous == nil {
		t.Netns = p.Sandbox.ProcPath()
	}
	for _, a := range p.Attachments {
		t.Attachments = append(t.Attachments, cleanup.Attachment{
			Network: a.Network, IfName: a.IfName, Config: a.Config, Result: a.Result,
		})
	}
	return t
}
