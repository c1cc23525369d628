package bench

import (
	"context"
	"errors"
	"fmt"
)

// flatTitle names an operation with a number of allocations present.
func flatTitle(operation, kind string, present int) string {
	return fmt.Sprintf("%s, %s, %d present", operation, kind, present)
}

// flat measures whether ADD and DEL take longer when many allocations are
// present. All sandboxes exist from the beginning.
func (b *bench) flat(ctx context.Context) error {
	for _, f := range b.size.flat {
		if err := b.flatOf(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) flatOf(ctx context.Context, f flatSize) error {
	slots, err := b.slots(ctx, f.present+spare)
	if err != nil {
		return err
	}
	full, free := slots[:f.present], slots[f.present:]
	systems, err := b.openAll(ctx, f.kind, false, baselineName, nativeName)
	if err != nil {
		return err
	}
	list := inOrder(systems)
	z := rounds{fast: b.size.flatRounds, slow: b.size.flatRounds}
	b.progress("%s: none present", f.kind)
	before, err := liveTurns(ctx, list, free, z)
	if err != nil {
		return err
	}
	filled := map[string]*lives{}
	for _, sys := range list {
		b.progress("%s: %d of %s present", f.kind, f.present, sys.name())
		if filled[sys.name()], err = flatOfSystem(ctx, sys, full, free, z); err != nil {
			return err
		}
	}
	// Again with none present, so that drift during the measurement affects
	// both sides.
	b.progress("%s: none present again", f.kind)
	after, err := liveTurns(ctx, list, free, z)
	if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
		return err
	}
	for _, operation := range []string{"ADD", "DEL"} {
		for _, sys := range list {
			none := append(before[sys.name()].of(operation), after[sys.name()].of(operation)...)
			b.report.add(flatTitle(operation, f.kind, 0), sys.name(), seconds, none)
		}
		for _, sys := range list {
			b.report.add(flatTitle(operation, f.kind, f.present), sys.name(), seconds, filled[sys.name()].of(operation))
		}
	}
	return nil
}

func (l *lives) of(operation string) samples {
	if operation == "ADD" {
		return l.adds
	}
	return l.dels
}

// flatOfSystem measures with allocations of the same system present.
func flatOfSystem(ctx context.Context, sys system, full, free []*slot, z rounds) (*lives, error) {
	if err := fill(ctx, sys, full); err != nil {
		return nil, err
	}
	if err := quiet(ctx); err != nil {
		return nil, err
	}
	measured, err := liveTurns(ctx, []system{sys}, free, z)
	if err != nil {
		return nil, err
	}
	return measured[sys.name()], drain(ctx, sys, full)
}
