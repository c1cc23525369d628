package tuning

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// addition is the state of one ADD.
type addition struct {
	sandbox *rtnl.Sandbox
	args    *sdk.CmdArgs
	owner   names.Owner
	result  *types100.Result // of the plugin before
	ifName  string
	want    *settings

	sysctls []undo
	link    netlink.Link
	file    string
	backup  backup
}

// Add implements sdk.Plugin. It returns prevResult with the changed attributes.
func (t *tuning) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	want, result, err := t.prepare(c)
	if err != nil {
		return nil, err
	}
	if err := checkAllowed(want.sysctls); err != nil {
		return nil, err
	}
	a := &addition{args: c, owner: c.Owner(t.Name), result: result, ifName: c.IfName, want: want, file: t.backupFile(c)}
	a.backup.Owner = a.owner.String()
	if a.sandbox, err = c.Sandbox(); err != nil {
		return nil, err
	}
	if err := sdk.Run(ctx, a.steps()...); err != nil {
		return nil, err
	}
	want.link.update(result, c.IfName)
	return result, nil
}

func (a *addition) steps() []sdk.Step {
	steps := []sdk.Step{{Name: "sysctls", Do: a.setSysctls, Undo: a.resetSysctls}}
	if a.want.link.empty() {
		return steps
	}
	return append(steps,
		sdk.Step{Name: "backup", Do: a.writeBackup, Undo: a.removeBackup},
		sdk.Step{Name: "source guard", Do: a.guard, Undo: a.unguard},
		sdk.Step{Name: "attributes", Do: a.setAttributes},
	)
}

func (a *addition) setSysctls(context.Context) (err error) {
	a.sysctls, err = setSysctls(a.sandbox, a.want.sysctls, a.ifName)
	return err
}

func (a *addition) resetSysctls(context.Context) error { return resetSysctls(a.sandbox, a.sysctls) }

func (a *addition) writeBackup(context.Context) (err error) {
	if a.link, err = a.sandbox.Link(a.ifName); err != nil {
		return fmt.Errorf("find link %q: %w", a.ifName, err)
	}
	id, err := a.sandbox.Identity()
	if err != nil {
		return err
	}
	a.backup.attributes, a.backup.Netns = a.want.link.of(a.link), &id
	return a.backup.write(a.file)
}

func (a *addition) removeBackup(context.Context) error { return removeBackup(a.file) }

func (a *addition) setAttributes(context.Context) error {
	h, err := a.sandbox.Handle()
	if err != nil {
		return err
	}
	if err := a.want.link.set(h, a.link); err != nil {
		return errors.Join(err, a.backup.restore(h, a.link))
	}
	return nil
}

// update writes the changed attributes into a result: the MAC, and the MTU if
// the result has one.
func (a *attributes) update(result *types100.Result, ifName string) {
	for _, i := range result.Interfaces {
		if i.Name != ifName || i.Sandbox == "" {
			continue
		}
		if a.MAC != "" {
			i.Mac = a.MAC
		}
		if a.MTU != 0 && i.Mtu != 0 {
			i.Mtu = a.MTU
		}
	}
}
