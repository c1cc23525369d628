package tuning

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/sandbox"
)

// Del implements sdk.Plugin. What cannot be restored is no error, for the
// interface is about to go, and the plugins that take it away must have their
// turn.
func (t *tuning) Del(_ context.Context, c *sdk.CmdArgs) error {
	if err := validate(c); err != nil {
		return err
	}
	file := t.backupFile(c)
	b, err := readBackup(file)
	if b != nil && !b.empty() {
		err = b.restoreIn(c)
	}
	if err != nil {
		c.Host.Log.Warn("attributes of an interface are not restored", "container", c.ContainerID, "error", err)
	}
	return removeBackup(file)
}

// restoreIn restores the interface of the call, if there still is one.
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

// GC implements sdk.Plugin. Backups of the reference plugin name no network
// and stay.
func (t *tuning) GC(_ context.Context, c *sdk.CmdArgs) error {
	files, err := stale(t.DataDir, c.Stale(&t.Common))
	errs := []error{err}
	for _, file := range files {
		errs = append(errs, remove(file))
	}
	return errors.Join(errs...)
}
