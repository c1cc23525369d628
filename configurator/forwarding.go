package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/record"
)

// allowForwarding adds rules that accept the published ports of a record in the FORWARD chain of
// the host, for networks whose plugins do not. It also adds the guard of the host's loopback,
// because the portmap plugin makes links route packets to 127.0.0.0/8. It ends within Config.Timeout.
func (c *Configurator) allowForwarding(ctx context.Context, p *plan.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	err := eachDestination(ctx, p, iptables.AllowPublished)
	if len(p.Ports) == 0 {
		return err
	}
	return errors.Join(err, unlessUnsupported(c.native.GuardLoopback(ctx)))
}

// checkForwarding checks the rules that allowForwarding has added. It ends within Config.Timeout.
func (c *Configurator) checkForwarding(ctx context.Context, p *plan.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	err := eachDestination(ctx, p, iptables.CheckPublished)
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
	return errors.Join(unlessUnsupported(rules.CheckGuard(ctx, ruleset.IPv4)), rules.Close())
}

// unlessUnsupported returns nil for the error of a host without nf_tables, on which no guard
// can exist.
func unlessUnsupported(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// eachDestination calls act for every network whose published ports need a rule: with its
// bridge, or with the subnets of the addresses in its result.
func eachDestination(ctx context.Context, p *plan.Plan, act func(context.Context, iptables.Destination) error) error {
	if len(p.Ports) == 0 {
		return nil
	}
	errs := []error{p.Unreadable}
	for i, n := range p.Networks {
		if n == nil {
			continue
		}
		bridge, ok := n.OpensPublished()
		switch {
		case !ok:
		case bridge != "":
			errs = append(errs, act(ctx, iptables.Destination{Bridge: bridge}))
		default:
			errs = append(errs, eachSubnet(ctx, p.Attachments[i].Result, act))
		}
	}
	return errors.Join(errs...)
}

// eachSubnet calls act for the subnets of the addresses in a result.
func eachSubnet(ctx context.Context, encoded json.RawMessage, act func(context.Context, iptables.Destination) error) error {
	result, err := engine.ParseResult(encoded)
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range result.IPs {
		subnet, err := netip.ParsePrefix(ip.Address.String())
		if err == nil {
			err = act(ctx, iptables.Destination{Subnet: subnet.Masked()})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
