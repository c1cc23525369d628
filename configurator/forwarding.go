package configurator

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/record"
)

// allowForwarding lets the published ports of a record through the host's FORWARD
// path, for the networks that leave that to us, and keeps others from the host's
// loopback, which the portmap plugin has links route.
func (c *Configurator) allowForwarding(ctx context.Context, p *plan) error {
	err := eachOpenBridge(p, iptables.AllowPublished)
	if len(p.Ports) == 0 {
		return err
	}
	return errors.Join(err, unlessUnsupported(c.native.GuardLoopback(ctx)))
}

// checkForwarding looks whether it is still so.
func checkForwarding(ctx context.Context, p *plan) error {
	err := eachOpenBridge(p, iptables.CheckPublished)
	if Engine(p.Engine) == EngineNative {
		return err // its plugins look for themselves
	}
	return errors.Join(err, checkGuard(ctx, p.Record))
}

// checkGuard looks for the guard of the loopback of a record with published ports.
func checkGuard(ctx context.Context, r *record.Record) error {
	if len(r.Ports) == 0 {
		return nil
	}
	rules, err := ruleset.Open()
	if err != nil {
		return err
	}
	return errors.Join(unlessUnsupported(rules.CheckGuard(ctx)), rules.Close())
}

// unlessUnsupported drops the error of a host without nf_tables, which can have no
// guard.
func unlessUnsupported(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

func eachOpenBridge(p *plan, act func(bridge string) error) error {
	if len(p.Ports) == 0 {
		return nil
	}
	errs := []error{p.unreadable}
	for _, n := range p.networks {
		if n == nil {
			continue
		}
		if bridge := n.OpenBridge(); bridge != "" {
			errs = append(errs, act(bridge))
		}
	}
	return errors.Join(errs...)
}
