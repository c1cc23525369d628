package configurator

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/record"
)

// allowForwarding adds rules that accept the published ports of a record in the FORWARD chain of
// the host, for networks whose plugins do not. It also adds the guard of the host's loopback,
// because the portmap plugin makes links route packets to 127.0.0.0/8.
func (c *Configurator) allowForwarding(ctx context.Context, p *plan) error {
	err := eachOpenBridge(p, iptables.AllowPublished)
	if len(p.Ports) == 0 {
		return err
	}
	return errors.Join(err, unlessUnsupported(c.native.GuardLoopback(ctx)))
}

// checkForwarding checks the rules that allowForwarding has added.
func checkForwarding(ctx context.Context, p *plan) error {
	err := eachOpenBridge(p, iptables.CheckPublished)
	if Engine(p.Engine) == EngineNative {
		return err // native plugins check the guard in CHECK
	}
	return errors.Join(err, checkGuard(ctx, p.Record))
}

// checkGuard checks the guard of the loopback for a record with published ports.
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

// unlessUnsupported returns nil for the error of a host without nf_tables, on which no guard
// can exist.
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
