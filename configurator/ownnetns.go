package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// inNetnsDir reports whether a path is directly in NetnsDir, where Setup creates
// network namespaces and Teardown destroys them.
func (c *Configurator) inNetnsDir(path string) bool {
	return filepath.Dir(path) == c.cfg.NetnsDir && filepath.Clean(path) == path
}

// nameNetns sets the default path of the network namespace of an allocation with OwnNetns. It
// returns ErrInvalidAllocation for a path outside of NetnsDir.
func (c *Configurator) nameNetns(a *Allocation) error {
	if !a.OwnNetns {
		return nil
	}
	if a.Netns == "" {
		a.Netns = filepath.Join(c.cfg.NetnsDir, a.ID)
	}
	if !c.inNetnsDir(a.Netns) {
		return fmt.Errorf("%w: netns %q: a namespace can only be made in %s", ErrInvalidAllocation, a.Netns, c.cfg.NetnsDir)
	}
	return nil
}

// makeNetns creates the network namespace of an allocation with OwnNetns, unless it exists. It
// notes the namespace before it becomes visible, so that GC finds it after a crash. made is also true
// if an operation that was interrupted has made it: then nothing uses it. The caller holds the lock
// of the allocation.
func (c *Configurator) makeNetns(ctx context.Context, a *Allocation) (made bool, err error) {
	if !a.OwnNetns {
		return false, nil
	}
	s, err := sandbox.Open(a.Netns)
	switch {
	case err == nil:
		r, err := c.store.Get(a.ID)
		return err == nil && r.Phase != record.Ready, s.Close()
	case errors.Is(err, sandbox.ErrNotNamespace):
		err = sandbox.Destroy(a.Netns) // left by a crash
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return false, netnsError(err)
	}
	s, err = sandbox.CreateNoted(ctx, c.cfg.NetnsDir, filepath.Base(a.Netns), func(id sandbox.Identity) error {
		return c.noteNetns(a.ID, record.Sandbox{Path: a.Netns, Identity: id, Scope: a.Scope})
	})
	if err == nil {
		return true, s.Close()
	}
	_, forgetErr := c.destroyNotedNetns(a.ID, none)
	if errors.Is(err, fs.ErrExist) { // another process has just made it
		return false, forgetErr
	}
	return false, errors.Join(err, forgetErr)
}

// noteNetns records that Setup created a network namespace for an allocation, with the ID of
// this boot.
func (c *Configurator) noteNetns(id string, s record.Sandbox) (err error) {
	if s.Boot, err = c.boot(); err != nil {
		return err
	}
	return c.store.AddSandbox(id, s)
}

// unmakeNetns destroys the network namespace that a failed Setup has created, unless leftovers
// of the allocation may be in it.
func (c *Configurator) unmakeNetns(a *Allocation, err error) error {
	if errors.Is(err, ErrIncomplete) || errors.Is(err, ErrNotChecked) || c.hasRecord(a.ID) {
		return err
	}
	_, destroyErr := c.destroyNotedNetns(a.ID, func(s record.Sandbox) bool { return s.Path == a.Netns })
	return errors.Join(err, destroyErr)
}

// noteNetnsForTeardown records the network namespace that is to be destroyed with an
// allocation, before its record is deleted. Without a record, it records nothing,
// because another program may have created the namespace at the given path; namespaces
// that Setup has created are recorded already. It returns ErrInUse if another
// allocation uses the namespace, other than those in with, which are torn down together
// with this one.
func (c *Configurator) noteNetnsForTeardown(a Allocation, with ...string) error {
	r, err := c.store.Get(a.ID)
	recorded := err == nil
	if !recorded {
		r = &record.Record{ID: a.ID, Netns: a.Netns}
		if r.Netns == "" {
			r.Netns = filepath.Join(c.cfg.NetnsDir, a.ID)
		}
	}
	if err := requireSame(r, a.Netns); err != nil {
		return err
	}
	if !c.inNetnsDir(r.Netns) {
		return nil
	}
	release, identity, err := identifyNetns(r)
	defer release()
	if isLost(err) {
		return nil // it no longer exists, or the path leads to another one
	}
	if err != nil {
		return fmt.Errorf("destroy network namespace: %w", err)
	}
	others, err := c.store.Residents(a.ID, r.Netns, identity)
	if err != nil {
		return fmt.Errorf("destroy network namespace %q: %w", r.Netns, err)
	}
	others = slices.DeleteFunc(others, func(other string) bool { return slices.Contains(with, other) })
	if len(others) > 0 {
		return fmt.Errorf("destroy network namespace: %w", &NetnsError{Netns: r.Netns, ID: a.ID, OtherID: others[0]})
	}
	if !recorded {
		return nil
	}
	return c.noteNetns(a.ID, record.Sandbox{Path: r.Netns, Identity: identity, Scope: r.Scope})
}

// requireSame returns ErrDifferent if a path leads to a network namespace other than that of a
// record. "" stands for no path. The caller opens the recorded path itself.
func requireSame(r *record.Record, path string) error {
	if path == "" || filepath.Clean(path) == filepath.Clean(r.Netns) {
		return nil
	}
	given := &record.Record{Netns: path}
	release, err := bindNetns(given)
	defer release()
	if err != nil || given.SameNetns(r) {
		return nil // there is nothing to destroy, or it is the same
	}
	return fmt.Errorf("destroy network namespace %q: %w: that of allocation %q is at %q; omit the path", path, ErrDifferent, r.ID, r.Netns)
}

// destroyNotedNetns destroys the recorded network namespaces of an allocation for which
// wanted returns true, and removes the entries of those that no longer exist. It
// destroys a namespace only if it is still the recorded one and no other allocation
// uses it. The caller holds the lock of the allocation.
func (c *Configurator) destroyNotedNetns(id string, wanted func(record.Sandbox) bool) (destroyed []string, err error) {
	list, err := c.store.Sandboxes(id)
	if err == nil && len(list) == 0 {
		err = c.store.PutSandboxes(id, nil) // removes a draft, too
	}
	if err != nil || len(list) == 0 {
		return nil, err
	}
	boot, err := c.boot()
	if err != nil {
		return nil, err
	}
	var kept []record.Sandbox
	var errs []error
	for _, s := range list {
		whole, err := netnsExists(s, boot)
		if err == nil && !whole && !(s.Boot == boot && sandbox.Unfinished(s.Path)) {
			continue
		}
		gone := err == nil && wanted(s)
		if gone {
			gone, err = c.destroyUnused(id, s)
		}
		if errs = append(errs, err); !gone {
			kept = append(kept, s)
		} else if whole {
			destroyed = append(destroyed, s.Path)
		}
	}
	if !slices.Equal(kept, list) {
		errs = append(errs, c.store.PutSandboxes(id, kept))
	}
	return destroyed, errors.Join(errs...)
}

// destroyUnused destroys a network namespace, unless another allocation uses it.
func (c *Configurator) destroyUnused(id string, s record.Sandbox) (gone bool, err error) {
	others, err := c.store.Residents(id, s.Path, s.Identity)
	if err != nil || len(others) > 0 {
		return false, err
	}
	err = sandbox.Destroy(s.Path)
	return err == nil, err
}

// netnsExists reports whether the path of a recorded namespace still leads to it. It
// does not after a reboot.
func netnsExists(s record.Sandbox, boot string) (bool, error) {
	if s.Boot != boot {
		return false, nil
	}
	release, err := openNetns(&record.Record{Netns: s.Path, Namespace: s.Identity})
	release()
	if isLost(err) {
		return false, nil
	}
	return err == nil, err
}

func every(record.Sandbox) bool { return true }

func none(record.Sandbox) bool { return false }

// gcNetns destroys the network namespaces of allocations that GC has removed, and of allocations
// of the scope that no longer have a record; the scope "" includes those of every scope.
// Without DestroyNetns, it only deletes the notes of namespaces that no longer exist.
func (c *Configurator) gcNetns(ctx context.Context, s Scope, removed []string) (destroyed []string, err error) {
	ids, err := c.store.WithSandboxes()
	errs := []error{err}
	for _, id := range ids {
		wanted := func(one record.Sandbox) bool { return abandoned(s, one) }
		switch {
		case c.hasRecord(id):
			continue
		case !s.DestroyNetns:
			wanted = none
		case slices.Contains(removed, id):
			wanted = every
		case slices.Contains(s.Live, id):
			continue
		}
		unlock, err := c.lock(ctx, id)
		if err != nil {
			errs = append(errs, about(id, err))
			continue
		}
		if !c.hasRecord(id) { // check again: a Setup may have written one before the lock was taken
			paths, err := c.destroyNotedNetns(id, wanted)
			destroyed, errs = append(destroyed, paths...), append(errs, about(id, err))
		}
		unlock()
	}
	slices.Sort(destroyed)
	return destroyed, errors.Join(errs...)
}

// abandoned reports whether a GC of the scope destroys the recorded network namespace
// of an allocation without a record.
func abandoned(s Scope, one record.Sandbox) bool { return s.Name == "" || one.Scope == s.Name }

// hasRecord reports whether an allocation has a record, readable or not.
func (c *Configurator) hasRecord(id string) bool {
	return c.store.Has(id)
}

// planNetns returns the paths of the network namespaces that gcNetns would destroy after
// the removal of some allocations.
func (c *Configurator) planNetns(s Scope, removed []string) (paths []string, err error) {
	if !s.DestroyNetns {
		return nil, nil
	}
	ids, err := c.store.WithSandboxes()
	boot, bootErr := c.boot()
	errs := []error{err, bootErr}
	goes := func(id string, one record.Sandbox) {
		others, err := c.store.Residents(id, one.Path, one.Identity)
		there, thereErr := netnsExists(one, boot)
		errs = append(errs, about(id, err), about(id, thereErr))
		stays := slices.ContainsFunc(others, func(other string) bool { return !slices.Contains(removed, other) })
		if err == nil && !stays && there {
			paths = append(paths, one.Path)
		}
	}
	for _, id := range removed {
		if r, err := c.store.Get(id); err == nil && c.inNetnsDir(r.Netns) && !r.Acknowledged && !r.FormerBoot {
			goes(id, record.Sandbox{Path: r.Netns, Identity: r.Namespace, Boot: boot})
		}
	}
	for _, id := range ids {
		goesWith := slices.Contains(removed, id)
		if !goesWith && (slices.Contains(s.Live, id) || c.hasRecord(id)) {
			continue
		}
		list, err := c.store.Sandboxes(id)
		errs = append(errs, about(id, err))
		for _, one := range list {
			if goesWith || abandoned(s, one) {
				goes(id, one)
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), errors.Join(errs...)
}
