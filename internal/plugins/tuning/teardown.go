package tuning

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/sandbox"
)

// Del implements sdk.Plugin. It only logs an attribute that it cannot restore:
// the interface is about to be deleted, and an error must not prevent that. If it
// does not know where the backup of an attachment is, it returns an
// *sdk.UnplacedError.
func (t *tuning) Del(_ context.Context, c *sdk.CmdArgs) error {
	if err := validate(c); err != nil {
		return err
	}
	file, b, err := t.find(c)
	if b != nil && !b.empty() {
		err = t.restore(c, b)
	}
	if err != nil {
		c.Host.Log.Warn("could not restore attributes of the interface", "container", c.ContainerID, "error", err)
	}
	err = removeBackup(file)
	if t.unplaced != nil && err == nil && b == nil && c.PreviousOfDel(&t.Common) != nil {
		err = &sdk.UnplacedError{What: "the backup of the interface's attributes", Err: t.unplaced}
	}
	return err
}

// restore restores the attachment's interface, if it still exists. The path of the
// namespace may lead to another container by now, whose interface has the same name. So
// it must be the namespace of the backup; for a backup that names none, restore changes
// only attributes with the values that ADD has set.
func (t *tuning) restore(c *sdk.CmdArgs, b *backup) error {
	s, err := c.Sandbox()
	if errors.Is(err, sandbox.ErrNotExist) || errors.Is(err, sandbox.ErrNotNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	if its, err := b.isOf(s); !its {
		return err
	}
	link, err := s.Link(c.IfName)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %q: %w", c.IfName, err)
	}
	had := b.attributes
	if b.Netns == nil {
		want, err := t.settings(c.Args)
		if err != nil {
			return err
		}
		had = b.ifSet(&want.link, link)
	}
	h, err := s.Handle()
	if err != nil {
		return err
	}
	return had.restore(h, link)
}

// isOf reports whether the backup may be that of an interface in a network namespace.
func (b *backup) isOf(s *rtnl.Sandbox) (bool, error) {
	if b.Netns == nil {
		return true, nil
	}
	id, err := s.Identity()
	return err == nil && b.Netns.Is(id), err
}

// GC implements sdk.Plugin. It keeps backups of the reference plugin, because
// they name no network.
func (t *tuning) GC(_ context.Context, c *sdk.CmdArgs) error {
	files, err := stale(t.DataDir, c.Stale(t.Name))
	errs := []error{err}
	for _, file := range files {
		errs = append(errs, remove(file))
	}
	return errors.Join(errs...)
}
