package native

import (
	"context"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Bandwidth is the name of the capability of limits.
const Bandwidth = "bandwidth"

// The errors of CanLimit.
var (
	ErrCannotLimit   = sdk.ErrCannotLimit
	ErrInvalidLimits = sdk.ErrInvalidLimits
)

// CanLimit returns an error if Limit cannot set the limits of a request: ErrCannotLimit, for
// example if the plugin that does so runs as a binary, ErrInvalidLimits, or another one if the
// network is not whole. The request has the results of ADD. CanLimit changes nothing.
func (e *Engine) CanLimit(ctx context.Context, r *engine.Request) error {
	exec, err := e.exec(r)
	if err != nil {
		return err
	}
	defer exec.Close()
	return eachDeclaring(r, Bandwidth, func(i, j int) error {
		a := r.Attachments[i]
		name := a.Network.List.Plugins[j].Network.Type
		err := error(nil)
		if slices.Contains(a.Binaries, name) || slices.Contains(e.Binaries(a.Network), name) {
			err = fmt.Errorf("plugin %q runs as a binary: %w", name, ErrCannotLimit)
		} else {
			err = exec.CanLimit(ctx, name, e.newChain(exec, r, i).args(j, a.Result))
		}
		if err != nil {
			return fmt.Errorf("network %q: %w", a.Network.Name, err)
		}
		return nil
	})
}

// Limit sets the limits of an allocation to those of the request: see sdk.Limiter. The request
// has the results of ADD. Limit returns the results that an ADD with these limits would have
// had; nil for attachments without a plugin for limits. It is idempotent.
func (e *Engine) Limit(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	results := make([]*types100.Result, len(r.Attachments))
	exec, err := e.exec(r)
	if err == nil {
		defer exec.Close()
		err = eachDeclaring(r, Bandwidth, func(i, j int) error {
			a := r.Attachments[i]
			c := e.newChain(exec, r, i)
			if results[i] == nil {
				results[i] = a.Result
			}
			result, err := exec.Limit(ctx, a.Network.List.Plugins[j].Network.Type, c.args(j, results[i]))
			if err == nil {
				results[i], err = c.versioned(result)
			}
			if err != nil {
				return fmt.Errorf("network %q: %w", a.Network.Name, err)
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("limit the bandwidth of allocation %q: %w", r.ID, err)
	}
	return results, nil
}
