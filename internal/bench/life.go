package bench

import (
	"context"
	"errors"
	"fmt"
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
