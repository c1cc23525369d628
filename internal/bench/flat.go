package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// flatTitle names an operation with a number of allocations present.
func flatTitle(operation, kind string, present int) string {
	return fmt.Sprintf("%s, %s, %d present", operation, kind, present)
}

// fillTitle names the rate at which the first n allocations are set up.
func fillTitle(kind string, n int) string {
	return fmt.Sprintf("first %d ADDs, %d at a time, %s", n, fillAtOnce, kind)
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
	most := slices.Max(f.present)
	slots, err := b.slots(ctx, most+spare)
	if err != nil {
		return err
	}
	free := slots[most:]
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
	filled := map[string]*filling{}
	for _, sys := range list {
		b.progress("%s: %d of %s present", f.kind, f.present, sys.name())
		if filled[sys.name()], err = flatOfSystem(ctx, sys, slots, f.present, z); err != nil {
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
		for i, present := range f.present {
			for _, sys := range list {
				b.report.add(flatTitle(operation, f.kind, present), sys.name(), seconds, filled[sys.name()].lives[i].of(operation))
			}
		}
	}
	for _, sys := range list {
		b.report.add(fillTitle(f.kind, most), sys.name(), rate, samples{float64(most) / filled[sys.name()].took.sum()})
	}
	return nil
}

func (l *lives) of(operation string) samples {
	if operation == "ADD" {
		return l.adds
	}
	return l.dels
}

// filling is what was measured while a system set up many allocations.
type filling struct {
	took  samples  // of the parts of the set-up
	lives []*lives // after each part
}

// flatOfSystem measures with allocations of the same system present, whose numbers
// ascend.
func flatOfSystem(ctx context.Context, sys system, slots []*slot, present []int, z rounds) (*filling, error) {
	f, from, most := &filling{}, 0, slices.Max(present)
	for _, n := range present {
		if err := timed(&f.took, func() error { return fill(ctx, sys, slots[from:n]) }); err != nil {
			return nil, err
		}
		if err := quiet(ctx); err != nil {
			return nil, err
		}
		measured, err := liveTurns(ctx, []system{sys}, slots[most:], z)
		if err != nil {
			return nil, err
		}
		f.lives = append(f.lives, measured[sys.name()])
		from = n
	}
	return f, drain(ctx, sys, slots[:most])
}
