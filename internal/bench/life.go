package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/configurator"
)

// life measures one allocation at a time: ADD, then DEL.
func (b *bench) life(ctx context.Context) error {
	slots, err := b.slots(ctx, spare)
	if err != nil {
		return err
	}
	for _, dual := range []bool{false, true} {
		if dual && b.size.dual.fast == 0 {
			continue
		}
		for _, kind := range b.size.kinds {
			if err := b.lifeOf(ctx, slots, kind, dual); err != nil {
				return err
			}
		}
	}
	if !slices.Contains(b.size.kinds, "bridge") {
		return nil
	}
	return b.reused(ctx, slots)
}

const reusedTitle = "ADD, bridge, addresses in use before"

// reused measures ADDs on a bridge with so few addresses that each was another allocation's within the
// last hour, as on every host with a /24: such an ADD announces its address.
func (b *bench) reused(ctx context.Context, slots []*slot) error {
	b.progress("one by one: bridge, addresses in use before")
	systems, err := b.openAll(ctx, "bridge", false, baselineName)
	if err != nil {
		return err
	}
	n := b.newNetwork(nativeName, "bridge", false)
	n.addresses = len(slots)
	native, err := b.newConfigured(ctx, n, nativeName, configurator.EngineNative)
	if err != nil {
		return errors.Join(err, closeAll(ctx, systems))
	}
	systems[nativeName] = native
	// The first round uses every address once.
	_, err = liveTurns(ctx, []system{native}, slots, rounds{fast: len(slots)})
	var measured map[string]*lives
	if err == nil {
		measured, err = liveTurns(ctx, inOrder(systems), slots, b.size.life)
	}
	if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
		return err
	}
	for _, sys := range inOrder(systems) {
		b.report.add(reusedTitle, sys.name(), seconds, measured[sys.name()].adds)
	}
	return nil
}

func (b *bench) lifeOf(ctx context.Context, slots []*slot, kind string, dual bool) error {
	title, z := kind, b.size.life
	if dual {
		title += ", dual stack"
		z = b.size.dual
	}
	b.progress("one by one: %s", title)
	systems, err := b.openAll(ctx, kind, dual, b.size.systems...)
	if err != nil {
		return err
	}
	measured, err := liveTurns(ctx, inOrder(systems), slots, z)
	if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
		return err
	}
	for _, sys := range inOrder(systems) {
		b.report.add(fmt.Sprintf("ADD, %s", title), sys.name(), seconds, measured[sys.name()].adds)
	}
	for _, sys := range inOrder(systems) {
		b.report.add(fmt.Sprintf("DEL, %s", title), sys.name(), seconds, measured[sys.name()].dels)
	}
	return nil
}
