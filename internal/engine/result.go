package engine

import (
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// ParseResult reads a CNI result of any version. It refuses one that
// contradicts itself: see Validate.
func ParseResult(data []byte) (*types100.Result, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrInvalidResult)
	}
	any, err := create.CreateFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	r, err := types100.NewResultFromResult(any)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	return r, Validate(r)
}

// Validate finds what would make a reader of the result stumble: an address
// that is none, or one of an interface that the result does not have.
func Validate(r *types100.Result) error {
	var errs []error
	for i, itf := range r.Interfaces {
		if itf == nil {
			errs = append(errs, fmt.Errorf("%w: interfaces[%d] is null", ErrInvalidResult, i))
		}
	}
	for i, ip := range r.IPs {
		switch {
		case ip == nil:
			errs = append(errs, fmt.Errorf("%w: ips[%d] is null", ErrInvalidResult, i))
		case len(ip.Address.IP) == 0:
			errs = append(errs, fmt.Errorf("%w: ips[%d] has no address", ErrInvalidResult, i))
		case ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)):
			errs = append(errs, fmt.Errorf("%w: ips[%d] (%s) is of interface %d, and there are %d",
				ErrInvalidResult, i, ip.Address.String(), *ip.Interface, len(r.Interfaces)))
		}
	}
	return errors.Join(errs...)
}
