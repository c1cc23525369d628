package configurator

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/plan"
)

// canLimit returns an error if the limits at which the update of a plan aims cannot be set: an
// *UnservedError, ErrCannotUpdate or ErrInvalidAllocation.
func (c *Configurator) canLimit(ctx context.Context, p *plan.Plan) error {
	limits := p.Update.Bandwidth
	if limits == nil {
		return nil
	}
	if *limits != (Bandwidth{}) && !p.Declares(plan.Bandwidth) {
		return p.UnservedError(plan.Bandwidth)
	}
	limited, err := p.LimitedTo(*limits)
	if err != nil {
		return err
	}
	request, err := c.request(limited)
	if err == nil {
		err = c.native.CanLimit(ctx, request)
	}
	switch {
	case errors.Is(err, native.ErrCannotLimit):
		return fmt.Errorf("update allocation %q: %w: %w", p.ID, ErrCannotUpdate, err)
	case errors.Is(err, native.ErrInvalidLimits):
		return fmt.Errorf("%w: bandwidth: %w", ErrInvalidAllocation, err)
	}
	return err
}

// limit gives an allocation the limits of its plan, and the plan the results that ADD would have
// had with them.
func (c *Configurator) limit(ctx context.Context, p *plan.Plan) error {
	return c.apply(ctx, StepLimit, p, func(ctx context.Context, request *engine.Request) error {
		results, err := c.native.Limit(ctx, request)
		if err != nil {
			return err
		}
		return keepResults(p, results)
	})
}
