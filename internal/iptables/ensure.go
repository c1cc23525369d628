package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Wanted is a rule that a table must have, or the chain itself if it has no Spec.
type Wanted struct {
	Chain string
	Spec  []string
	First bool // insert it before the other rules of the chain
}

// String returns the chain and the rule.
func (w Wanted) String() string { return w.Chain + " " + strings.Join(w.Spec, " ") }

// Ensure creates missing chains and rules, in order.
func (c *Command) Ensure(ctx context.Context, table string, wanted []Wanted) error {
	for _, w := range wanted {
		if err := c.ensure(ctx, table, w); err != nil {
			return fmt.Errorf("create %s: %w", w, err)
		}
	}
	return nil
}

func (c *Command) ensure(ctx context.Context, table string, w Wanted) error {
	if len(w.Spec) == 0 {
		return c.EnsureChain(ctx, table, w.Chain)
	}
	found, err := c.Exists(ctx, table, w.Chain, w.Spec...)
	if err != nil || found {
		return err
	}
	if w.First {
		return c.Prepend(ctx, table, w.Chain, w.Spec...)
	}
	return c.Append(ctx, table, w.Chain, w.Spec...)
}

// Check returns an error that names all missing rules. It does not look for chains:
// without its chain, a rule is missing.
func (c *Command) Check(ctx context.Context, table string, wanted []Wanted) error {
	var errs []error
	for _, w := range wanted {
		if len(w.Spec) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		found, err := c.Exists(ctx, table, w.Chain, w.Spec...)
		switch {
		case err != nil && !IsMissing(err):
			errs = append(errs, fmt.Errorf("%s: look for rule %s: %w", c.Name, w, err))
		case err != nil || !found:
			errs = append(errs, fmt.Errorf("%s rule is missing: %s", c.Name, w))
		}
	}
	return errors.Join(errs...)
}

// Remove deletes rules. A missing rule is not an error.
func (c *Command) Remove(ctx context.Context, table string, rules []Wanted) error {
	var errs []error
	for _, r := range rules {
		if err := c.Delete(ctx, table, r.Chain, r.Spec...); err != nil && !IsMissing(err) {
			errs = append(errs, fmt.Errorf("%s: delete rule %s: %w", c.Name, r, err))
		}
	}
	return errors.Join(errs...)
}
