package native

import (
	"context"
	"fmt"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Prepared is what the ADD of a container without host ports has made, so that Bind can
// tell whether it is still there.
type Prepared struct {
	elements []*ruleset.Elements
	names    []string // of links on the host
	// Links are the indexes of these links.
	Links []int
}

// CanPrepare returns an error if containers of a network cannot be prepared: if a plugin
// runs as a binary, or its ADD depends on the request.
func (e *Engine) CanPrepare(n *conflist.Network) error {
	of := e.network(n)
	if of.err != nil {
		return of.err
	}
	if binaries := e.Binaries(n); len(binaries) > 0 {
		return fmt.Errorf("plugins %q run as binaries", binaries)
	}
	for i, p := range n.List.Plugins {
		for _, name := range []string{p.Network.Type, p.Network.IPAM.Type} {
			if name == "" {
				continue
			}
			if err := of.plugins[i].Binds(name, e.plugins[name]); err != nil {
				return fmt.Errorf("plugin %q: %w", name, err)
			}
		}
	}
	return nil
}

// Prepared describes a container after its ADD, whose results the request has, and does
// ahead what Bind can leave out then: see sdk.Preparer. It returns an error if the
// container has rules outside of allocnet's tables: Bind does not notice when another
// program removes them.
func (e *Engine) Prepared(ctx context.Context, r *engine.Request) (*Prepared, error) {
	exec, err := e.exec(r)
	if err != nil {
		return nil, err
	}
	defer exec.Close()
	prepared := &Prepared{}
	for i, a := range r.Attachments {
		c := e.newChain(exec, r, i)
		for j, p := range a.Network.List.Plugins {
			w, err := exec.Wanted(ctx, p.Network.Type, c.args(j, a.Result))
			if err != nil {
				return nil, err
			}
			if w.Individual || len(w.Sources) > 0 {
				return nil, fmt.Errorf("plugin %q: it needs rules that only a CHECK finds to be missing", p.Network.Type)
			}
			if w.Elements != nil {
				prepared.elements = append(prepared.elements, w.Elements)
			}
			if err := exec.Prepare(ctx, p.Network.Type, c.args(j, a.Result)); err != nil {
				return nil, err
			}
		}
		for _, itf := range a.Result.Interfaces {
			if itf.Sandbox != "" {
				continue
			}
			index, err := exec.Host.Kernel.Index(itf.Name)
			if err != nil {
				return nil, fmt.Errorf("link %q: %w", itf.Name, err)
			}
			prepared.names, prepared.Links = append(prepared.names, itf.Name), append(prepared.Links, index)
		}
	}
	shared, err := e.crossingsOf(ctx, exec, r)
	prepared.elements = append(prepared.elements, shared...)
	return prepared, err
}

// Bind publishes the host ports of a prepared container. The request has the ID and the
// results of its ADD. Bind returns an error if a link of the host or a table is missing,
// and restores missing elements. It adds all elements in one transaction. If unchanged, the
// caller knows that nothing of the links and of the rules has changed since the ADD, so Bind
// does not look. After an error, the caller calls Del.
func (e *Engine) Bind(ctx context.Context, prepared *Prepared, r *engine.Request, unchanged bool) error {
	if err := e.bind(ctx, prepared, r, unchanged); err != nil {
		return fmt.Errorf("bind container %q: %w", r.ID, err)
	}
	return nil
}

func (e *Engine) bind(ctx context.Context, prepared *Prepared, r *engine.Request, unchanged bool) error {
	exec, err := e.exec(r)
	if err != nil {
		return err
	}
	defer exec.Close()
	elements := prepared.elements
	if unchanged {
		elements = nil
	} else if err := prepared.requireLinks(exec.Host.Kernel); err != nil {
		return err
	}
	additions := &sdk.Additions{}
	var links []*sdk.PendingLink
	for i, a := range r.Attachments {
		c := e.newChain(exec, r, i)
		c.common.Additions, links = additions, append(links, c.common.Link)
		for j, p := range a.Network.List.Plugins {
			additions.Plugin = p.Network.Type
			for _, name := range []string{p.Network.IPAM.Type, p.Network.Type} {
				if name == "" {
					continue
				}
				args := c.args(j, a.Result)
				args.Unchanged = unchanged
				if err := exec.Bind(ctx, name, args); err != nil {
					return err
				}
			}
		}
	}
	if err := additions.Extend(ctx, exec.Host, elements); err != nil {
		return err
	}
	for _, l := range links {
		if err := l.Release(exec.Host); err != nil {
			return err
		}
	}
	return nil
}

func (p *Prepared) requireLinks(host *rtnl.Host) error {
	for _, name := range p.names {
		if _, err := host.Index(name); err != nil {
			return fmt.Errorf("link %q: %w", name, err)
		}
	}
	return nil
}
