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
		err = b.restoreIn(c)
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

// restoreIn restores the attachment's interface, if it still exists.
func (b *backup) restoreIn(c *sdk.CmdArgs) error {
	s, err := c.Sandbox()
	if errors.Is(err, sandbox.ErrNotExist) || errors.Is(err, sandbox.ErrNotNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	link, err := s.Link(c.IfName)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %q: %w", c.IfName, err)
	}
	h, err := s.Handle()
	if err != nil {
		return err
	}
	return b.restore(h, link)
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
