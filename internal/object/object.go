// Package object describes what an attachment has in the kernel as data. A kind of object is told once: how what is
// there differs from it, in words, and what puts that right. All operations are made of that: ADD makes objects of
// which nothing is there yet, CHECK reports the differences, and repairs put them right.
package object

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Object is something that an attachment has in a network namespace. It does not change.
type Object interface {
	// Compare returns how what is there differs from the object. The error says why it is not known.
	Compare(context.Context, *View) ([]Difference, error)
}

// Difference is one way in which what is there differs from an object.
type Difference struct {
	// Finding names the difference; nil if CHECK does not mind it.
	Finding error
	// Harmless: no packet is lost by it, so that a repair that cannot change it has not failed.
	Harmless bool
	// Blocks: without it, a repair leaves the objects after this one alone.
	Blocks bool
	// Do and Put put it right, Do first; with neither, only another program or the administrator of the host can.
	// Do is called in the network namespace. Settle is called after the changes of Put were made.
	Do     func() error
	Put    func(*rtnl.Batch)
	Settle func(context.Context) error
}

func (d *Difference) canChange() bool { return d.Do != nil || d.Put != nil }

// Check returns the findings about objects, in their order.
func Check(ctx context.Context, v *View, objects ...Object) error {
	differences, err := compare(ctx, v, objects)
	return errors.Join(err, findings(differences))
}

// Make makes objects of links that have nothing yet: see View.Made.
func Make(ctx context.Context, v *View, objects ...Object) error {
	differences, err := compare(ctx, v, objects)
	if err != nil {
		return err
	}
	_, err = v.change(ctx, differences)
	return err
}

// rounds is how often Restore compares and changes: with IPv6 off, or under another name, the kernel does not show what else
// a link lacks.
const rounds = 4

// Restore puts right how what is there differs from objects, but for those that are Required. It changes nothing if it is not
// known what is there. The error has the findings that stay, and why. changed reports that something was put right.
func Restore(ctx context.Context, v *View, objects ...Object) (changed bool, err error) {
	objects = slices.DeleteFunc(slices.Clone(objects), func(o Object) bool { _, is := o.(required); return is })
	var failed error // of the last changes
	before := ""     // the findings that led to them
	for round := 0; ; round++ {
		differences, err := compare(ctx, v, objects)
		if err != nil {
			return changed, errors.Join(failed, err)
		}
		changes, left := divide(differences)
		now := fmt.Sprint(findings(differences))
		stuck := failed != nil && now == before
		changed = changed || round > 0 && !stuck
		switch {
		case len(changes) == 0 && changed:
			return changed, errors.Join(left, await(ctx, v, objects))
		case len(changes) == 0:
			return changed, left
		case stuck:
			return changed, errors.Join(failed, left)
		case round == rounds:
			return changed, errors.Join(failed, left, findings(changes))
		}
		stop, err := v.change(ctx, changes)
		v.forget()
		if stop {
			return changed, err
		}
		failed, before = err, now
	}
}

// divide returns the differences that a repair changes, and what it has to leave.
func divide(differences []Difference) (changes []Difference, left error) {
	var errs []error
	for _, d := range differences {
		if d.canChange() {
			changes = append(changes, d)
			continue
		}
		if !d.Harmless {
			errs = append(errs, d.Finding)
		}
		if d.Blocks {
			break
		}
	}
	return changes, errors.Join(errs...)
}

func findings(differences []Difference) error {
	errs := make([]error, len(differences))
	for i, d := range differences {
		errs[i] = d.Finding
	}
	return errors.Join(errs...)
}

func await(ctx context.Context, v *View, objects []Object) error {
	var errs []error
	for _, o := range objects {
		if a, ok := o.(*Addresses); ok {
			errs = append(errs, a.awaitPresent(ctx, v))
		}
	}
	return errors.Join(errs...)
}

func compare(ctx context.Context, v *View, objects []Object) (differences []Difference, err error) {
	v.missing = map[string]bool{}
	var errs []error
	for _, o := range objects {
		some, err := o.Compare(ctx, v)
		differences, errs = append(differences, some...), append(errs, err)
	}
	return differences, errors.Join(errs...)
}

// Required returns objects that are compared, but never changed: they belong to the host or to another program.
func Required(objects ...Object) []Object {
	list := make([]Object, len(objects))
	for i, o := range objects {
		list[i] = required{o}
	}
	return list
}

type required struct{ Object }

// Compare implements Object.
func (r required) Compare(ctx context.Context, v *View) ([]Difference, error) {
	differences, err := r.Object.Compare(ctx, v)
	for i := range differences {
		differences[i] = Difference{Finding: differences[i].Finding, Harmless: differences[i].Harmless}
	}
	return differences, err
}
