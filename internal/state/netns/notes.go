package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// Notes names, creates and destroys network namespaces that belong to an allocation. It records them
// in the Store, so that they can be destroyed with the allocation, also after a crash. It is safe for
// concurrent use.
type Notes struct {
	Store *record.Store
	Dir   string                 // the only directory in which namespaces are created and destroyed
	Boot  func() (string, error) // the ID of this boot of the host
	// Lock locks an allocation.
	Lock func(ctx context.Context, id string) (unlock func(), err error)
}

// Name sets the path of the network namespace of an allocation with OwnNetns: the default one, or that
// in the directory by its usual name. It returns ErrInvalidAllocation for a path outside of the directory.
func (n *Notes) Name(a *allocnet.Allocation) error {
	if !a.OwnNetns {
		return nil
	}
	if a.Netns == "" {
		a.Netns = filepath.Join(n.Dir, a.ID)
	}
	path, ok := In(n.Dir, a.Netns)
	if !ok {
		return fmt.Errorf("%w: netns %q: a namespace can only be made in %s", allocnet.ErrInvalidAllocation, a.Netns, n.Dir)
	}
	a.Netns = path
	return nil
}

// Make creates the network namespace of an allocation with OwnNetns, unless it exists. It
// notes the namespace before it becomes visible, so that GC finds it after a crash. made is also true
// if an operation that was interrupted has made it: then nothing uses it. The caller holds the lock
// of the allocation.
func (n *Notes) Make(ctx context.Context, a *allocnet.Allocation) (made bool, err error) {
	if !a.OwnNetns {
		return false, nil
	}
	s, err := sandbox.Open(a.Netns)
	switch {
	case err == nil:
		r, err := n.Store.Get(a.ID)
		return err == nil && r.Phase != record.Ready, s.Close()
	case errors.Is(err, sandbox.ErrNotNamespace):
		err = sandbox.Destroy(a.Netns) // left by a crash
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return false, invalid(err)
	}
	s, err = sandbox.CreateNoted(ctx, n.Dir, filepath.Base(a.Netns), func(id sandbox.Identity) error {
		return n.Add(a.ID, record.Sandbox{Path: a.Netns, Identity: id, Scope: a.Scope})
	})
	if err == nil {
		return true, s.Close()
	}
	_, forgetErr := n.Destroy(a.ID, none)
	if errors.Is(err, fs.ErrExist) { // another process has just made it
		return false, forgetErr
	}
	return false, errors.Join(err, forgetErr)
}

// Add records that Setup created a network namespace for an allocation, with the ID of
// this boot.
func (n *Notes) Add(id string, s record.Sandbox) (err error) {
	if s.Boot, err = n.Boot(); err != nil {
		return err
	}
	return n.Store.AddSandbox(id, s)
}

// Unmake destroys the network namespace that a failed Setup has created, unless leftovers
// of the allocation may be in it.
func (n *Notes) Unmake(a *allocnet.Allocation, err error) error {
	if errors.Is(err, allocnet.ErrIncomplete) || errors.Is(err, allocnet.ErrNotChecked) || n.Store.Has(a.ID) {
		return err
	}
	_, destroyErr := n.Destroy(a.ID, func(s record.Sandbox) bool { return s.Path == a.Netns })
	return errors.Join(err, destroyErr)
}

// AddForTeardown records the network namespace that is to be destroyed with an
// allocation, before its record is deleted. Without a record, it records nothing,
// because another program may have created the namespace at the given path; namespaces
// that Setup has created are recorded already. It returns ErrInUse if another
// allocation uses the namespace, other than those in with, which are torn down together
// with this one.
func (n *Notes) AddForTeardown(a allocnet.Allocation, with ...string) error {
	r, err := n.Store.Get(a.ID)
	recorded := err == nil
	if !recorded {
		r = &record.Record{ID: a.ID, Netns: a.Netns}
		if r.Netns == "" {
			r.Netns = filepath.Join(n.Dir, a.ID)
		}
	}
	if err := requireSame(r, a.Netns); err != nil {
		return err
	}
	path, ok := In(n.Dir, r.Netns)
	if !ok {
		return nil
	}
	release, identity, err := identify(r)
	defer release()
	if IsLost(err) {
		return nil // it no longer exists, or the path leads to another one
	}
	if err != nil {
		return fmt.Errorf("destroy network namespace: %w", err)
	}
	others, err := n.Store.Residents(a.ID, r.Netns, identity)
	if err != nil {
		return fmt.Errorf("destroy network namespace %q: %w", r.Netns, err)
	}
	others = slices.DeleteFunc(others, func(other string) bool { return slices.Contains(with, other) })
	if len(others) > 0 {
		return fmt.Errorf("destroy network namespace: %w", &allocnet.NetnsError{Netns: r.Netns, ID: a.ID, OtherID: others[0]})
	}
	if !recorded {
		return nil
	}
	return n.Add(a.ID, record.Sandbox{Path: path, Identity: identity, Scope: r.Scope})
}

// requireSame returns allocnet.ErrDifferent if a path leads to a network namespace other than that of a
// record. "" stands for no path. The caller opens the recorded path itself.
func requireSame(r *record.Record, path string) error {
	if path == "" || filepath.Clean(path) == filepath.Clean(r.Netns) {
		return nil
	}
	given := &record.Record{Netns: path}
	release, err := Bind(given)
	defer release()
	if err != nil || given.SameNetns(r) {
		return nil // there is nothing to destroy, or it is the same
	}
	return fmt.Errorf("destroy network namespace %q: %w: that of allocation %q is at %q; omit the path", path, allocnet.ErrDifferent, r.ID, r.Netns)
}

// Destroy destroys the recorded network namespaces of an allocation for which
// wanted returns true, and removes the entries of those that no longer exist. It
// destroys a namespace only if it is still the recorded one and no other allocation
// uses it. The caller holds the lock of the allocation.
func (n *Notes) Destroy(id string, wanted func(record.Sandbox) bool) (destroyed []string, err error) {
	list, err := n.Store.Sandboxes(id)
	if err == nil && len(list) == 0 {
		err = n.Store.PutSandboxes(id, nil) // removes a draft, too
	}
	if err != nil || len(list) == 0 {
		return nil, err
	}
	boot, err := n.Boot()
	if err != nil {
		return nil, err
	}
	var kept []record.Sandbox
	var errs []error
	for _, s := range list {
		whole, err := exists(s, boot)
		if err == nil && !whole && !(s.Boot == boot && sandbox.Unfinished(s.Path)) {
			continue
		}
		gone := err == nil && wanted(s)
		if gone {
			gone, err = n.destroyUnused(id, s)
		}
		if errs = append(errs, err); !gone {
			kept = append(kept, s)
		} else if whole {
			destroyed = append(destroyed, s.Path)
		}
	}
	if !slices.Equal(kept, list) {
		errs = append(errs, n.Store.PutSandboxes(id, kept))
	}
	return destroyed, errors.Join(errs...)
}

// destroyUnused destroys a network namespace, unless another allocation uses it.
func (n *Notes) destroyUnused(id string, s record.Sandbox) (gone bool, err error) {
	others, err := n.Store.Residents(id, s.Path, s.Identity)
	if err != nil || len(others) > 0 {
		return false, err
	}
	err = sandbox.Destroy(s.Path)
	return err == nil, err
}

// exists reports whether the path of a recorded namespace still leads to it. It
// does not after a reboot.
func exists(s record.Sandbox, boot string) (bool, error) {
	if s.Boot != boot {
		return false, nil
	}
	release, err := Open(&record.Record{Netns: s.Path, Namespace: s.Identity})
	release()
	if IsLost(err) {
		return false, nil
	}
	return err == nil, err
}

// Every is a condition for Destroy that holds for every namespace.
func Every(record.Sandbox) bool { return true }

func none(record.Sandbox) bool { return false }

// GC destroys the network namespaces of allocations that GC has removed, and of allocations
// of the scope that no longer have a record; the scope "" includes those of every scope.
// Without DestroyNetns, it only deletes the notes of namespaces that no longer exist.
func (n *Notes) GC(ctx context.Context, s allocnet.Scope, removed []string) (destroyed []string, err error) {
	ids, err := n.Store.WithSandboxes()
	errs := []error{err}
	for _, id := range ids {
		wanted := func(one record.Sandbox) bool { return abandoned(s, one) }
		switch {
		case n.Store.Has(id):
			continue
		case !s.DestroyNetns:
			wanted = none
		case slices.Contains(removed, id):
			wanted = Every
		case slices.Contains(s.Live, id):
			continue
		}
		unlock, err := n.Lock(ctx, id)
		if err != nil {
			errs = append(errs, about(id, err))
			continue
		}
		if !n.Store.Has(id) { // check again: a Setup may have written one before the lock was taken
			paths, err := n.Destroy(id, wanted)
			destroyed, errs = append(destroyed, paths...), append(errs, about(id, err))
		}
		unlock()
	}
	slices.Sort(destroyed)
	return destroyed, errors.Join(errs...)
}

// abandoned reports whether a GC of the scope destroys the recorded network namespace
// of an allocation without a record.
func abandoned(s allocnet.Scope, one record.Sandbox) bool { return s.Name == "" || one.Scope == s.Name }

// PlanGC returns the paths of the network namespaces that GC would destroy after
// the removal of some allocations.
func (n *Notes) PlanGC(s allocnet.Scope, removed []string) (paths []string, err error) {
	if !s.DestroyNetns {
		return nil, nil
	}
	ids, err := n.Store.WithSandboxes()
	boot, bootErr := n.Boot()
	errs := []error{err, bootErr}
	goes := func(id string, one record.Sandbox) {
		others, err := n.Store.Residents(id, one.Path, one.Identity)
		there, thereErr := exists(one, boot)
		errs = append(errs, about(id, err), about(id, thereErr))
		stays := slices.ContainsFunc(others, func(other string) bool { return !slices.Contains(removed, other) })
		if err == nil && !stays && there {
			paths = append(paths, one.Path)
		}
	}
	for _, id := range removed {
		r, err := n.Store.Get(id)
		if err != nil || r.Acknowledged || r.FormerBoot {
			continue
		}
		if path, ok := In(n.Dir, r.Netns); ok {
			goes(id, record.Sandbox{Path: path, Identity: r.Namespace, Boot: boot})
		}
	}
	for _, id := range ids {
		goesWith := slices.Contains(removed, id)
		if !goesWith && (slices.Contains(s.Live, id) || n.Store.Has(id)) {
			continue
		}
		list, err := n.Store.Sandboxes(id)
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

// about adds the ID of an allocation to an error.
func about(id string, err error) error {
	if err == nil {
		return nil
	}
	return &allocnet.AllocationError{ID: id, Err: err}
}
