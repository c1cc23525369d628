package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/state/record"
)

// bandwidth is the capability of limits.
const bandwidth = native.Bandwidth

// limitsOf returns the limits that a record requests; the zero value if there are none.
func limitsOf(r *record.Record) (limits Bandwidth, err error) {
	if isEmpty(r.Capabilities[bandwidth]) {
		return limits, nil
	}
	if err := json.Unmarshal(r.Capabilities[bandwidth], &limits); err != nil {
		return limits, fmt.Errorf("capability %q of allocation %q: %w", bandwidth, r.ID, err)
	}
	return limits, nil
}

// withLimits returns capability arguments with other limits.
func withLimits(capabilities map[string]json.RawMessage, limits Bandwidth) (map[string]json.RawMessage, error) {
	all := maps.Clone(capabilities)
	delete(all, bandwidth)
	if limits == (Bandwidth{}) {
		return all, nil
	}
	text, err := json.Marshal(limits)
	if err != nil {
		return nil, fmt.Errorf("encode capability %q: %w", bandwidth, err)
	}
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	all[bandwidth] = text
	return all, nil
}

// canLimit returns an error if the limits at which the update of a plan aims cannot be set: an
// *UnservedError, ErrCannotUpdate or ErrInvalidAllocation.
func (c *Configurator) canLimit(ctx context.Context, p *plan) error {
	limits := p.Update.Bandwidth
	if limits == nil {
		return nil
	}
	if *limits != (Bandwidth{}) && !p.declares(bandwidth) {
		return p.unservedError(bandwidth)
	}
	limited, err := p.limitedTo(*limits)
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

// limitedTo returns the plan with other limits.
func (p *plan) limitedTo(limits Bandwidth) (*plan, error) {
	limited := p.changed(func(r *record.Record) {
		r.Attachments = slices.Clone(p.Attachments) // they get other results
		if limits == (Bandwidth{}) {
			r.Unserved = without(p.Unserved, bandwidth)
		}
	})
	var err error
	limited.Capabilities, err = withLimits(p.Capabilities, limits)
	return limited, err
}

// limit gives an allocation the limits of its plan, and the plan the results that ADD would have
// had with them.
func (c *Configurator) limit(ctx context.Context, p *plan) error {
	return c.apply(ctx, StepLimit, p, func(ctx context.Context, request *engine.Request) error {
		results, err := c.native.Limit(ctx, request)
		if err != nil {
			return err
		}
		return keepResults(p, results)
	})
}
