package netns

import (
	"errors"
	"slices"

	"github.com/allocnet/allocnet/internal/state/record"
)

// Orphans returns the paths of the network namespaces that GC with DestroyNetns would destroy because
// their allocations have no record, sorted. It leaves out those of allocations that an operation is
// working on: a Setup notes the namespace before it writes the record.
func (n *Notes) Orphans() (paths []string, err error) {
	ids, err := n.Store.WithSandboxes()
	boot, bootErr := n.Boot()
	if err := errors.Join(err, bootErr); err != nil {
		return nil, err
	}
	var errs []error
	for _, id := range slices.DeleteFunc(ids, n.Store.Has) {
		of, err := n.orphansOf(id, boot)
		paths, errs = append(paths, of...), append(errs, about(id, err))
	}
	slices.Sort(paths)
	return slices.Compact(paths), errors.Join(errs...)
}

func (n *Notes) orphansOf(id, boot string) (paths []string, err error) {
	locked, unlock, err := n.Store.TryLocks([]string{id})
	if err != nil {
		return nil, err
	}
	defer unlock()
	if len(locked) == 0 || n.Store.Has(id) {
		return nil, nil
	}
	list, err := n.Store.Sandboxes(id)
	errs := []error{err}
	for _, one := range list {
		orphaned, err := n.isOrphan(id, one, boot)
		if errs = append(errs, err); orphaned {
			paths = append(paths, one.Path)
		}
	}
	return paths, errors.Join(errs...)
}

// isOrphan reports whether a namespace of an allocation without a record exists, and no other
// allocation uses it.
func (n *Notes) isOrphan(id string, one record.Sandbox, boot string) (bool, error) {
	there, err := exists(one, boot)
	if err != nil || !there {
		return false, err
	}
	others, err := n.Store.Residents(id, one.Path, one.Identity)
	return err == nil && len(others) == 0, err
}
