package sdk

import (
	"context"
	"fmt"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Addition is what the ADD of one plugin adds to allocnet's tables.
type Addition struct {
	Elements *ruleset.Elements
	// Added is called after the elements were added. It may be nil.
	Added func(context.Context)

	plugin string
}

func (n *Addition) apply(ctx context.Context, host *Host) error {
	err := host.Rules.Add(ctx, n.Elements)
	if err == nil && n.Added != nil {
		n.Added(ctx)
	}
	return err
}

// Additions collects what the plugins of one chain add for one attachment, so that
// Apply adds all of it in one transaction. It is not safe for concurrent use.
type Additions struct {
	// Plugin is the type of the plugin that runs.
	Plugin string

	list []Addition
}

// AddElements adds elements of the attachment in ADD. If the arguments have Additions,
// the elements are added after the last plugin of the chain. Elements with a zone are
// added at once, because their addresses may enter the zone only after that.
func (a *CmdArgs) AddElements(ctx context.Context, n Addition) error {
	if a.Additions == nil || n.Elements.Zone != "" {
		return n.apply(ctx, a.Host)
	}
	n.plugin = a.Additions.Plugin
	a.Additions.list = append(a.Additions.list, n)
	return nil
}

// Apply adds all elements in one transaction. If that fails, it adds those of one plugin
// after the other, as without Additions: then the error names the plugin.
func (x *Additions) Apply(ctx context.Context, host *Host) error {
	if len(x.list) > 1 && host.Rules.Add(ctx, x.elements()) == nil {
		x.added(ctx)
		return nil
	}
	for _, n := range x.list {
		if err := n.apply(ctx, host); err != nil {
			return fmt.Errorf("plugin %q: %w", n.plugin, err)
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
	x.added(ctx)
	return nil
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
	x.added(ctx)
	return nil
}

func (x *Additions) added(ctx context.Context) {
	for _, n := range x.list {
		if n.Added != nil {
			n.Added(ctx)
		}
	}
}

// elements returns the elements of all additions, which have the same owner.
func (x *Additions) elements() *ruleset.Elements {
	all := &ruleset.Elements{Owner: x.list[0].Elements.Owner}
	for _, n := range x.list {
		e := n.Elements
		all.Masquerade = append(all.Masquerade, e.Masquerade...)
		all.Exempt = append(all.Exempt, e.Exempt...)
		all.Published = append(all.Published, e.Published...)
		all.Mappings = append(all.Mappings, e.Mappings...)
		all.Open = append(all.Open, e.Open...)
		all.Guarded = append(all.Guarded, e.Guarded...)
	}
	return all
}
