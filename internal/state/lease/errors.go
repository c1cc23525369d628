package lease

import (
	"errors"

	"github.com/allocnet/allocnet"
)

// Errors of Reserve, for errors.Is.
var (
	// ErrExhausted: all addresses of a range set are leased.
	ErrExhausted = allocnet.ErrExhausted
	// ErrDuplicate: the owner already has an address of the range set.
	ErrDuplicate = errors.New("duplicate allocation is not allowed")
	// ErrTaken: the requested address is already leased.
	ErrTaken error = unavailable("it is leased already")
	// ErrNotHeld: an owner does not have the address.
	ErrNotHeld = errors.New("it is not leased to that owner")
	// ErrNotInRange: the requested address is not in the range set, or is that of the
	// gateway.
	ErrNotInRange error = unavailable("the address is not for lease")
)

// unavailable is a reason for which errors.Is also finds allocnet.ErrAddressUnavailable.
type unavailable string

func (u unavailable) Error() string { return string(u) }

func (unavailable) Is(target error) bool { return target == allocnet.ErrAddressUnavailable }

// errHardLink: a file to be written has several hard links.
var errHardLink = errors.New("the file is a hard link; remove it")
