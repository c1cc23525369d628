package portmap

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/conntrack"
	"github.com/allocnet/allocnet/internal/plugin"
	"github.com/allocnet/allocnet/internal/ruleset"
)

// forget makes the kernel forget where it led clients of the host ports before.
func (p *publication) forget(ctx context.Context, c *plugin.Call) error {
	var errs []error
	for _, address := range p.addresses {
		addr := address.Addr()
		ports, err := p.asked(ctx, c, addr, p.stateless(addr))
		errs = append(errs, err, c.Host.Conntrack.FlushPorts(ctx, family(addr), ports...))
	}
	return errors.Join(errs...)
}

// disconnect makes the kernel forget the connections to the sandbox. Where its
// address is not known, those to the host ports are what is left to go by.
func (p *publication) disconnect(ctx context.Context, c *plugin.Call) error {
	var errs []error
	if len(p.mappings) > 0 && len(p.addresses) > 0 {
		for _, address := range p.addresses {
			addr := address.Addr()
			ports, err := p.asked(ctx, c, addr, p.ports(addr))
			errs = append(errs, err)
			if err != nil || len(ports) > 0 {
				errs = append(errs, c.Host.Conntrack.FlushAddress(ctx, addr))
			}
		}
		return errors.Join(errs...)
	}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		errs = append(errs, c.Host.Conntrack.FlushPorts(ctx, family(any), p.stateless(any)...))
	}
	return errors.Join(errs...)
}

// asked are those of the ports to which the kernel may track connections.
// allocnet's tables know; with the other layouts, it may be any. When the tables
// are new, what came before them is looked up once.
func (p *publication) asked(ctx context.Context, c *plugin.Call, addr netip.Addr, ports []conntrack.Port) ([]conntrack.Port, error) {
	if _, own := p.backend.(native); !own || len(ports) == 0 {
		return ports, nil
	}
	asked, known, err := c.Host.Rules.TakeAsked(ctx, family(addr), ofRuleset(ports))
	if err != nil {
		return ports, err
	}
	if !known {
		return ports, p.noteEarlier(ctx, c, addr)
	}
	var list []conntrack.Port
	for _, port := range ports {
		for _, a := range asked {
			if a.Protocol == port.Protocol && a.Number == port.Number {
				list = append(list, port)
			}
		}
	}
	return list, nil
}

// noteEarlier tells the tables what was asked for before they were made. That
// they are gone is no fault of this plugin's.
func (p *publication) noteEarlier(ctx context.Context, c *plugin.Call, addr netip.Addr) error {
	earlier, err := c.Host.Conntrack.Ports(ctx, family(addr))
	if err != nil {
		return err
	}
	err = c.Host.Rules.NoteAsked(ctx, family(addr), ofRuleset(earlier))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func ofRuleset(ports []conntrack.Port) []ruleset.Port {
	list := make([]ruleset.Port, len(ports))
	for i, p := range ports {
		list[i] = ruleset.Port{Protocol: p.Protocol, Number: p.Number}
	}
	return list
}
