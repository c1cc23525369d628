package native

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Handover gives the network of one container, which has no host ports, to another one with
// its own request, and returns the results of the networks. It changes all elements in one
// transaction, before anything else. Both requests have the same networks and sandbox; the
// results of to are ignored. After an error, the caller calls Del for both requests.
func (e *Engine) Handover(ctx context.Context, from, to *engine.Request) ([]*types100.Result, error) {
	results, err := e.handOver(ctx, from, to)
	if err != nil {
		return nil, fmt.Errorf("hand over the network of %q to %q: %w", from.ID, to.ID, err)
	}
	return results, nil
}

func (e *Engine) handOver(ctx context.Context, from, to *engine.Request) ([]*types100.Result, error) {
	exec, err := e.exec(to)
	if err != nil {
		return nil, err
	}
	defer exec.Close()
	h := &handover{exec: exec, from: from.ID}
	var results []*types100.Result
	for i := range to.Attachments {
		result := renamed(from.Attachments[i].Result, exec.Instance, from, to, i)
		results = append(results, result)
		if err := h.collect(ctx, e.newChain(exec, from, i), from.Attachments[i].Result, e.newChain(exec, to, i), result); err != nil {
			return nil, err
		}
	}
	return results, h.apply(ctx)
}

// renamed returns a result with the names of another container.
func renamed(r *types100.Result, instance string, from, to *engine.Request, i int) *types100.Result {
	owner := func(r *engine.Request) names.Owner {
		return names.Owner{Network: r.Attachments[i].Network.Name, ID: r.ID, IfName: r.IfName(i), Instance: instance}
	}
	former, now := owner(from).Veth(), owner(to).Veth()
	copied := *r
	copied.Interfaces = nil
	for _, itf := range r.Interfaces {
		one := *itf
		switch {
		case one.Sandbox != "":
			one.Sandbox = to.Netns
		case one.Name == former:
			one.Name = now
		}
		copied.Interfaces = append(copied.Interfaces, &one)
	}
	return &copied
}

// CanHandOver returns an error if Handover cannot give away the network of a container:
// if a plugin runs as a binary, or names the container where it cannot be renamed.
func (e *Engine) CanHandOver(n *conflist.Network) error {
	of := e.network(n)
	if of.err != nil {
		return of.err
	}
	if len(e.Binaries(n)) > 0 {
		return fmt.Errorf("plugins %q run as binaries: %w", e.Binaries(n), sdk.ErrNoHandover)
	}
	for i, p := range n.List.Plugins {
		for _, name := range []string{p.Network.Type, p.Network.IPAM.Type} {
			if name == "" {
				continue
			}
			if err := of.plugins[i].HandsOver(name, e.plugins[name]); err != nil {
				return fmt.Errorf("plugin %q: %w", name, err)
			}
		}
	}
	return nil
}

// handover is what one Handover changes.
type handover struct {
	exec     *sdk.Exec
	from     string
	old, now []*ruleset.Elements
	plugins  []handoverOf
}

// handoverOf is the part of one plugin.
type handoverOf struct {
	name string
	args *sdk.CmdArgs
}

// collect asks the plugins of a network what both containers want. It changes nothing.
func (h *handover) collect(ctx context.Context, old *chain, before *types100.Result, now *chain, result *types100.Result) error {
	if err := errors.Join(old.network.err, now.network.err); err != nil {
		return err
	}
	for i, p := range now.of.List.Plugins {
		had, err := h.exec.Wanted(ctx, p.Network.Type, old.args(i, before))
		if err != nil {
			return err
		}
		args := now.args(i, result)
		wants, err := h.exec.Wanted(ctx, p.Network.Type, args)
		if err != nil {
			return err
		}
		if had.Individual || wants.Individual || len(wants.Sources) > 0 {
			return fmt.Errorf("plugin %q: %w", p.Network.Type, sdk.ErrNoHandover)
		}
		if had.Elements != nil {
			h.old = append(h.old, had.Elements)
		}
		if wants.Elements != nil {
			h.now = append(h.now, wants.Elements)
		}
		h.plugins = append(h.plugins, handoverOf{p.Network.Type, args})
	}
	return nil
}

// apply makes the changes.
func (h *handover) apply(ctx context.Context) error {
	if err := h.exec.Host.Rules.Handover(ctx, h.old, h.now); err != nil {
		return err
	}
	for _, p := range h.plugins {
		if err := h.exec.Handover(ctx, p.name, p.args, h.from); err != nil {
			return err
		}
	}
	return nil
}
