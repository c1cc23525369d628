package native

import (
	"context"
	"fmt"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Prepared is what the ADD of a container without host ports has made, so that Bind can
// tell whether it is still there.
type Prepared struct {
	elements []*ruleset.Elements
	links    []string // on the host
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

// Prepared describes a container after its ADD, whose results the request has. It returns
// an error if the container has rules outside of allocnet's tables: Bind does not notice
// when another program removes them.
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
		}
		for _, itf := range a.Result.Interfaces {
			if itf.Sandbox == "" {
				prepared.links = append(prepared.links, itf.Name)
			}
		}
	}
	return prepared, nil
}

// Bind publishes the host ports of a prepared container. The request has the ID and the
// results of its ADD. Bind returns an error if a link of the host or a table is missing,
// and restores missing elements. It adds all elements in one transaction. After an error,
// the caller calls Del.
func (e *Engine) Bind(ctx context.Context, prepared *Prepared, r *engine.Request) error {
	if err := e.bind(ctx, prepared, r); err != nil {
		return fmt.Errorf("bind container %q: %w", r.ID, err)
	}
	return nil
}

func (e *Engine) bind(ctx context.Context, prepared *Prepared, r *engine.Request) error {
	exec, err := e.exec(r)
	if err != nil {
		return err
	}
	defer exec.Close()
	for _, name := range prepared.links {
		if _, err := exec.Host.Kernel.Index(name); err != nil {
			return fmt.Errorf("link %q: %w", name, err)
		}
	}
	additions := &sdk.Additions{}
	for i, a := range r.Attachments {
		c := e.newChain(exec, r, i)
		c.common.Additions = additions
		for j, p := range a.Network.List.Plugins {
			additions.Plugin = p.Network.Type
			for _, name := range []string{p.Network.IPAM.Type, p.Network.Type} {
				if name == "" {
					continue
				}
				if err := exec.Bind(ctx, name, c.args(j, a.Result)); err != nil {
					return err
				}
			}
		}
	}
	return additions.Extend(ctx, exec.Host, prepared.elements)
}
