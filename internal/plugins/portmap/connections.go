package portmap

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// forgetStale is flushStale that logs the error.
func (p *publication) forgetStale(ctx context.Context, c *sdk.CmdArgs) {
	if err := p.flushStale(ctx, c); err != nil {
		c.Host.Log.Warn("packets of existing connections to the host port may not reach the container", "error", err)
	}
}

// flushStale flushes connections to the host ports from before the ports were
// published. The DEL of an earlier allocation has flushed its own connections. Those of an older
// attachment that has a host port for which this one waits go on.
func (p *publication) flushStale(ctx context.Context, c *sdk.CmdArgs) error {
	var errs []error
	for _, address := range p.addresses {
		ports, family := p.stateless(address.Addr()), family(address.Addr())
		if _, own := p.backend.(native); own {
			errs = append(errs, p.flushContacted(ctx, c, family, ports))
		} else {
			errs = append(errs, c.Host.Conntrack.FlushPorts(ctx, family, ports...))
		}
	}
	return errors.Join(errs...)
}

// flushContacted flushes the connections of the ports that allocnet's tables
// record as contacted. It removes the ports from the tables last, so that after
// a crash the tables still record every remaining connection.
func (p *publication) flushContacted(ctx context.Context, c *sdk.CmdArgs, family uint8, ports []conntrack.Port) error {
	contacted, known, err := c.Host.Rules.Contacted(ctx, family, ofRuleset(ports))
	if e := p.elements(c); e.MayWait && len(contacted) > 0 {
		waiting, waitErr := c.Host.Rules.Waiting(ctx, e)
		err = errors.Join(err, waitErr)
		contacted = slices.DeleteFunc(contacted, func(port ruleset.Port) bool {
			return slices.ContainsFunc(waiting, func(m ruleset.Mapping) bool {
				same := m.HostIP == port.HostIP || !m.HostIP.IsValid() && port.HostIP.IsUnspecified()
				return same && m.Protocol == port.Protocol && m.HostPort == port.Number && m.To.Addr().Is4() == (family == unix.AF_INET)
			})
		})
	}
	err = errors.Join(err, c.Host.Conntrack.FlushPorts(ctx, family, ofConntrack(contacted)...))
	switch {
	case err != nil:
		return err
	case !known:
		return c.Host.Rules.LearnContacted(ctx, family, func(ctx context.Context) ([]ruleset.Port, error) {
			tracked, err := c.Host.Conntrack.Ports(ctx, family)
			return ofRuleset(slices.DeleteFunc(tracked, func(p conntrack.Port) bool { return !isStateless(p) })), err
		})
	case len(contacted) > 0:
		return c.Host.Rules.ForgetContacted(ctx, family, contacted)
	}
	return nil
}

// disconnect flushes the connections to a container whose link another plugin
// created; allocnet's plugins do so when they delete the link. Without a
// result, it uses the addresses of the elements and flushes the connections of
// the host ports, too, unless they are another attachment's: an ADD that was
// refused for that reason never had them.
func (p *publication) disconnect(ctx context.Context, c *sdk.CmdArgs, published []netip.Addr) error {
	for _, address := range p.addresses {
		published = append(published, address.Addr())
	}
	errs := []error{c.Host.Conntrack.FlushAddresses(ctx, published...)}
	if len(p.addresses) == 0 {
		for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			ports, err := c.Host.Rules.Unpublished(ctx, family(any), ofRuleset(p.ports(any)))
			errs = append(errs, err, c.Host.Conntrack.FlushPorts(ctx, family(any), ofConntrack(ports)...))
		}
	}
	return errors.Join(errs...)
}

func ofRuleset(ports []conntrack.Port) []ruleset.Port {
	list := make([]ruleset.Port, len(ports))
	for i, p := range ports {
		list[i] = ruleset.Port(p)
	}
	return list
}

func ofConntrack(ports []ruleset.Port) []conntrack.Port {
	list := make([]conntrack.Port, len(ports))
	for i, p := range ports {
		list[i] = conntrack.Port(p)
	}
	return list
}
