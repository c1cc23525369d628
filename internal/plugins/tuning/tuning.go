package tuning

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// tuning is the plugin with its configuration.
type tuning struct{ config }

var (
	_ sdk.Repairer = (*tuning)(nil)
	_ sdk.Tuner    = (*tuning)(nil)
)

var errNoPrevious = sdk.Invalid(errors.New("no prevResult: the plugin must come after one that makes an interface"))

// validate rejects names that would lead out of a directory.
func validate(c *sdk.CmdArgs) error {
	if err := names.ValidateContainer(c.ContainerID); err != nil {
		return err
	}
	return names.ValidateInterface(c.IfName)
}

// prepare is the common part of ADD and CHECK.
func (t *tuning) prepare(c *sdk.CmdArgs) (*settings, *types100.Result, error) {
	if err := validate(c); err != nil {
		return nil, nil, err
	}
	want, err := t.valid(c.Args)
	if err != nil {
		return nil, nil, err
	}
	result, err := c.Previous(&t.Common)
	if err == nil && result == nil {
		err = errNoPrevious
	}
	return want, result, err
}

// Check implements sdk.Plugin.
func (t *tuning) Check(_ context.Context, c *sdk.CmdArgs) error {
	want, _, err := t.prepare(c)
	if err != nil {
		return err
	}
	s, err := c.Sandbox()
	if err != nil {
		return err
	}
	if err := checkSysctls(s, want.sysctls, c.IfName); err != nil {
		return err
	}
	link, err := s.Link(c.IfName)
	if err != nil {
		return fmt.Errorf("find link %q: %w", c.IfName, err)
	}
	if err := want.link.check(link); err != nil {
		return fmt.Errorf("link %q: %w", c.IfName, err)
	}
	return nil
}

// Repair implements sdk.Repairer: it sets again what another program has changed.
func (t *tuning) Repair(_ context.Context, c *sdk.CmdArgs) error {
	want, _, err := t.prepare(c)
	if err == nil {
		err = checkAllowed(want.sysctls)
	}
	if err != nil {
		return err
	}
	s, err := c.Sandbox()
	if err != nil {
		return err
	}
	if checkSysctls(s, want.sysctls, c.IfName) != nil {
		if _, err := setSysctls(s, want.sysctls, c.IfName); err != nil {
			return err
		}
	}
	link, err := s.Link(c.IfName)
	if err != nil {
		return fmt.Errorf("find link %q: %w", c.IfName, err)
	}
	changed := want.link.unlike(link)
	if changed.empty() {
		return nil
	}
	h, err := s.Handle()
	if err != nil {
		return err
	}
	return changed.restore(h, link)
}

// Tune implements sdk.Tuner. The MAC is in the result.
func (t *tuning) Tune(l *sdk.Later) {
	if mtu := override(t.MTU, t.args.MTU); mtu != 0 {
		l.MTU = mtu
	}
	l.Sysctls = l.Sysctls || len(t.Sysctl.with(t.args.Sysctl)) > 0
}

// valid returns the settings with CNI_ARGS.
func (t *tuning) valid(args string) (*settings, error) {
	if t.Sysctl.duplicate != "" {
		return nil, t.Sysctl.errDuplicate()
	}
	return t.settings(args)
}

// Status implements sdk.Plugin: it validates the configuration.
func (t *tuning) Status(context.Context, *sdk.CmdArgs) error { return t.Validate(nil) }

// Validate implements sdk.Validator.
func (t *tuning) Validate(*types100.Result) error {
	_, err := t.valid("")
	return err
}

// NoResult implements sdk.Chained.
func (t *tuning) NoResult() error { return errNoPrevious }
