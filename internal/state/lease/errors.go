package lease

import (
	"errors"

	"github.com/allocnet/allocnet"
)

// Reserve fails with these, which errors.Is finds.
var (
	// ErrExhausted: all addresses of a range set are leased.
	ErrExhausted = allocnet.ErrExhausted
	// ErrDuplicate: the owner has an address of the range set already.
	ErrDuplicate = errors.New("duplicate allocation is not allowed")
	// ErrTaken: the requested address is leased.
	ErrTaken = errors.New("it is leased already")
	// ErrNotInRange: the requested address is not one that can be leased, or that
	// of the gateway.
	ErrNotInRange = errors.New("the address is not for lease")
)

// errHardLink: a file that is to be written to has another name.
var errHardLink = errors.New("the file is a hard link; remove it")
