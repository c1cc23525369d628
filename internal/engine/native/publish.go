package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/portmap"
)

// ErrCannotPublish: host ports of a network cannot be changed while it is set up.
var ErrCannotPublish = errors.New("its host ports cannot be changed while it runs")

// CanPublish returns ErrCannotPublish if the host ports of a request cannot be changed by
// Publish: if the plugin that publishes them runs as a binary or has rules outside of allocnet's
// tables. The request has the results of ADD. CanPublish changes nothing.
func (e *Engine) CanPublish(ctx context.Context, r *engine.Request) error {
	exec, err := e.exec(r)
	if err != nil {
		return err
	}
	defer exec.Close()
	return eachDeclaring(r, portmap.Capability, func(i, j int) error {
		a := r.Attachments[i]
		name := a.Network.List.Plugins[j].Network.Type
		if slices.Contains(a.Binaries, name) || slices.Contains(e.Binaries(a.Network), name) {
			return fmt.Errorf("network %q: plugin %q runs as a binary: %w", a.Network.Name, name, ErrCannotPublish)
		}
		_, err := publishedBy(ctx, exec, name, e.newChain(exec, r, i).args(j, a.Result))
		return err
	})
}

// eachDeclaring calls act with the numbers of the attachments and plugins of a request that
// declare a capability.
func eachDeclaring(r *engine.Request, capability string, act func(i, j int) error) error {
	for i, a := range r.Attachments {
		for j, p := range a.Network.List.Plugins {
			if !p.Network.Capabilities[capability] {
				continue
			}
			if err := act(i, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// Publish changes the host ports of an allocation from those in before, which are capability
// arguments as in a request, to those of the request, in one transaction for each network. It
// then ends the connections to host ports that are published no longer. Those of TCP to a host
// port that leads elsewhere from then on stay where they are; clients of the other protocols
// follow, because their connections may never end. The request has the results of ADD. Publish
// is idempotent.
func (e *Engine) Publish(ctx context.Context, r *engine.Request, before map[string]json.RawMessage) error {
	exec, err := e.exec(r)
	if err == nil {
		defer exec.Close()
		err = eachDeclaring(r, portmap.Capability, func(i, j int) error {
			now, then := e.newChain(exec, r, i), e.newChain(exec, r, i)
			then.capabilities = before
			return now.publish(ctx, j, then, r.Attachments[i].Result)
		})
	}
	if err != nil {
		return fmt.Errorf("publish host ports of allocation %q: %w", r.ID, err)
	}
	return nil
}

// publish is Publish of plugin i, given the chain with the host ports before and the result of
// ADD.
func (c *chain) publish(ctx context.Context, i int, before *chain, result *types100.Result) error {
	name := c.of.List.Plugins[i].Network.Type
	was, err := publishedBy(ctx, c.exec, name, before.args(i, result))
	if err != nil {
		return err
	}
	is, err := publishedBy(ctx, c.exec, name, c.args(i, result))
	if err != nil {
		return err
	}
	additions := &sdk.Additions{Plugin: name}
	c.common.Additions = additions
	if err := c.exec.Bind(ctx, name, c.args(i, result)); err != nil {
		return err
	}
	if err := additions.Replace(ctx, c.exec.Host, was); err != nil {
		return err
	}
	return flushRedirections(ctx, c.exec.Host.Conntrack, was.Mappings, is.Mappings)
}

// publishedBy returns the elements of the host ports that arguments request.
func publishedBy(ctx context.Context, exec *sdk.Exec, name string, args *sdk.CmdArgs) (*ruleset.Elements, error) {
	w, err := exec.Wanted(ctx, name, args)
	switch {
	case err != nil:
		return nil, err
	case w.Individual || len(w.Sources) > 0:
		return nil, fmt.Errorf("plugin %q has rules outside of allocnet's tables: %w", name, ErrCannotPublish)
	case w.Elements == nil:
		return &ruleset.Elements{}, nil
	}
	return w.Elements, nil
}

// flushRedirections ends the connections of the mappings in was that are not in is, except
// those of TCP to a host port that is.
func flushRedirections(ctx context.Context, conn *conntrack.Conn, was, is []ruleset.Mapping) error {
	// A TCP connection goes on if its host port leads to the same address, at whatever port.
	place := func(m ruleset.Mapping) ruleset.Mapping {
		if m.Protocol == unix.IPPROTO_TCP {
			m.To = netip.AddrPortFrom(m.To.Addr(), 0)
		}
		return m
	}
	stays := make(map[ruleset.Mapping]bool, len(is))
	for _, m := range is {
		stays[place(m)] = true
	}
	var errs []error
	for family, of := range map[uint8]func(netip.Addr) bool{unix.AF_INET: netip.Addr.Is4, unix.AF_INET6: netip.Addr.Is6} {
		var gone []conntrack.Redirection
		for _, m := range was {
			if of(m.To.Addr()) && !stays[place(m)] {
				gone = append(gone, conntrack.Redirection{
					Port: conntrack.Port{Protocol: m.Protocol, Number: m.HostPort, HostIP: m.HostIP}, To: m.To,
				})
			}
		}
		errs = append(errs, conn.FlushRedirections(ctx, family, gone...))
	}
	return errors.Join(errs...)
}
