package sdk

import (
	"context"
	"reflect"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Addition is what the ADD of one plugin adds to allocnet's tables.
type Addition struct {
	Elements *ruleset.Elements
	// Added is called after the elements were added, and in a chain before the link is in its final group.
	// After an error, the ADD fails. It may be nil.
	Added func(context.Context) error
	// Final returns the elements for the result of the whole chain, whose later plugins
	// may change what Elements depend on. It may be nil.
	Final func(*types100.Result) *ruleset.Elements
	// Now adds the elements at once, because the plugin itself needs them.
	Now bool

	plugin string
	in     *ruleset.Elements // those that were added
}

// apply adds the elements, or replaces those that were added before.
func (n *Addition) apply(ctx context.Context, host *Host) error {
	var err error
	switch {
	case n.in == nil:
		err = host.Rules.Add(ctx, n.Elements)
	case !reflect.DeepEqual(n.in, n.Elements):
		err = host.Rules.Replace(ctx, n.in, n.Elements)
	}
	if err == nil {
		n.in = n.Elements
	}
	if err == nil && n.Added != nil {
		err = n.Added(ctx)
	}
	return err
}

// Additions collects what the plugins of one chain add for one attachment, so that
// Apply adds all of it in one transaction. It is not safe for concurrent use.
type Additions struct {
	// Plugin is the type of the plugin that runs.
	Plugin string
	// AtOnce adds the elements of each plugin at once.
	AtOnce bool
	// RoutesLoopback is set if a later plugin of the chain sets route_localnet of the
	// host's link: see LoopbackRouter.
	RoutesLoopback bool
	// LoopbackRouted is the name of the link of the host that has been made with
	// route_localnet, behind the guard; "" is none.
	LoopbackRouted string

	list []Addition
	last []func(*types100.Result)
}

// LoopbackRouter is a plugin that publishes host ports.
type LoopbackRouter interface {
	// RoutesLoopback reports whether connections from 127.0.0.1 are redirected to IPv4
	// addresses of containers. Then the host's link needs route_localnet, which costs
	// nothing in the request that makes the link.
	RoutesLoopback() bool
}

// RoutesLoopback reports whether a plugin is such a LoopbackRouter.
func (c *PluginConf) RoutesLoopback(name string, factory Factory) bool {
	if factory == nil { // a binary
		return false
	}
	p, err := c.make(pluginKey{name, c.Bare != nil}, factory)
	r, ok := p.(LoopbackRouter)
	return err == nil && ok && r.RoutesLoopback()
}

// AddElements adds elements of the attachment in ADD. If the arguments have Additions,
// the elements are added after the last plugin of the chain. Elements with a zone are
// added at once, because their addresses may enter the zone only after that.
func (a *CmdArgs) AddElements(ctx context.Context, n Addition) error {
	if a.Additions == nil || n.Elements.Zone != "" {
		return n.apply(ctx, a.Host)
	}
	n.plugin = a.Additions.Plugin
	if n.Now || a.Additions.AtOnce {
		if err := n.apply(ctx, a.Host); err != nil {
			return err
		}
		n.Added = nil
	}
	a.Additions.list = append(a.Additions.list, n)
	return nil
}

// Passes reports whether packets of the attachment pass as soon as the plugin has added its elements, and
// not only when the ADD of the chain ends.
func (a *CmdArgs) Passes() bool {
	return a.Additions == nil || a.Additions.AtOnce && a.Link == nil
}

// AtEnd calls a function with the result of the chain when everything of the attachment was added, and
// its packets pass. It calls none if the plugin runs alone.
func (a *CmdArgs) AtEnd(do func(*types100.Result)) {
	if a.Additions != nil {
		a.Additions.last = append(a.Additions.last, do)
	}
}

// End calls the functions that were given to AtEnd. Call it when the packets of the attachment pass.
func (x *Additions) End(result *types100.Result) {
	for _, do := range x.last {
		do(result)
	}
}

// Advance adds the elements that depend on the result of the chain for the result that it is
// about to have, before a plugin makes the container send by it.
func (x *Additions) Advance(ctx context.Context, host *Host, result *types100.Result) error {
	for i := range x.list {
		n := &x.list[i]
		if n.Final == nil {
			continue
		}
		n.Elements = n.Final(result)
		if err := n.apply(ctx, host); err != nil {
			return err
		}
	}
	return nil
}

// Finish gives the result of the whole chain to the additions that depend on it. Call it
// before Apply.
func (x *Additions) Finish(result *types100.Result) {
	for i := range x.list {
		if n := &x.list[i]; n.Final != nil {
			n.Elements = n.Final(result)
		}
	}
}

// More adds elements to those of the plugins.
func (x *Additions) More(e *ruleset.Elements) {
	x.list = append(x.list, Addition{Elements: e, plugin: x.Plugin})
}

// Apply adds all elements in one transaction. If that fails, it adds those of one plugin
// after the other, as without Additions: then the error names the plugin.
func (x *Additions) Apply(ctx context.Context, host *Host) error {
	applied := func(n Addition) bool { return n.in != nil }
	if len(x.list) > 1 && !slices.ContainsFunc(x.list, applied) && host.Rules.Add(ctx, x.elements()) == nil {
		return x.added(ctx)
	}
	for i := range x.list {
		n := &x.list[i]
		if err := n.apply(ctx, host); err != nil {
			return named(n.plugin, err)
		}
	}
	return nil
}

// Extend is Apply for an attachment that has elements already: see ruleset.Extend.
func (x *Additions) Extend(ctx context.Context, host *Host, present []*ruleset.Elements) error {
	more := &ruleset.Elements{}
	if len(x.list) > 0 {
		more = x.elements()
	}
	if err := host.Rules.Extend(ctx, present, more); err != nil {
		return err
	}
	return x.added(ctx)
}

// Replace is Apply in place of the elements that the attachment had before: see
// ruleset.Replace.
func (x *Additions) Replace(ctx context.Context, host *Host, before *ruleset.Elements) error {
	after := &ruleset.Elements{Owner: before.Owner}
	if len(x.list) > 0 {
		after = x.elements()
	}
	if err := host.Rules.Replace(ctx, before, after); err != nil {
		return err
	}
	return x.added(ctx)
}

func (x *Additions) added(ctx context.Context) error {
	for _, n := range x.list {
		if n.Added == nil {
			continue
		}
		if err := n.Added(ctx); err != nil {
			return named(n.plugin, err)
		}
	}
	return nil
}

// elements returns the elements of all additions, which have the same owner.
func (x *Additions) elements() *ruleset.Elements {
	all := &ruleset.Elements{Owner: x.list[0].Elements.Owner}
	for _, n := range x.list {
		all.Append(n.Elements)
	}
	return all
}
