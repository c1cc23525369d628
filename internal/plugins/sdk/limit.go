package sdk

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Limiter is a plugin whose limits can change while an attachment exists.
type Limiter interface {
	// CanLimit returns an error if Limit cannot set the limits of the arguments:
	// ErrCannotLimit, ErrInvalidLimits, or another one if the attachment is not whole. The
	// arguments are those of Limit. CanLimit changes nothing.
	CanLimit(*CmdArgs) error
	// Limit sets the limits of the arguments, in place of those that the attachment has, in
	// whole or in part. The arguments have the result of ADD. Limit returns the result that
	// an ADD with these limits would have had. Where one limit takes the place of another,
	// there is no moment without any. Limit is idempotent, and does not undo its changes
	// after an error: the caller does so with the limits from before.
	Limit(context.Context, *CmdArgs) (*types100.Result, error)
}

var (
	// ErrCannotLimit: the limits of an attachment cannot be changed.
	ErrCannotLimit = errors.New("its limits cannot be changed while it runs")
	// ErrInvalidLimits: there are no such limits.
	ErrInvalidLimits = errors.New("invalid limits")
)

// CanLimit is CanLimit of a native Limiter. Other plugins cannot limit.
func (e *Exec) CanLimit(ctx context.Context, name string, a *CmdArgs) (err error) {
	defer e.recovered(name, "limit", &err)
	l, err := e.limiter(ctx, name, a)
	if err == nil {
		err = l.CanLimit(a)
	}
	return named(name, err)
}

// Limit is Limit of a native Limiter.
func (e *Exec) Limit(ctx context.Context, name string, a *CmdArgs) (result *types100.Result, err error) {
	defer e.recovered(name, "limit", &err)
	l, err := e.limiter(ctx, name, a)
	if err == nil {
		result, err = l.Limit(ctx, a)
	}
	if err != nil {
		return nil, named(name, err)
	}
	return result, nil
}

func (e *Exec) limiter(ctx context.Context, name string, a *CmdArgs) (Limiter, error) {
	a.exec, a.Host, a.Instance = e, e.Host, e.Instance
	factory, native := e.Plugins[name]
	if !native {
		return nil, fmt.Errorf("it runs as a binary: %w", ErrCannotLimit)
	}
	p, why, err := e.choose(ctx, name, Repair, factory, a)
	if err != nil {
		return nil, err
	}
	if why != nil {
		return nil, fmt.Errorf("it runs as a binary: %w: %w", ErrCannotLimit, why)
	}
	l, ok := p.(Limiter)
	if !ok {
		return nil, ErrCannotLimit
	}
	return l, nil
}
