package ruleset

import (
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/names"
)

var (
	// ErrMissing: elements, or parts of the tables, are not as they should be.
	ErrMissing = errors.New("nftables rules are missing")
	// ErrPortTaken: a host port belongs to another owner: see PortTakenError.
	ErrPortTaken = errors.New("host port is taken")
)

// PortTakenError says which host port another has. errors.Is finds ErrPortTaken.
type PortTakenError struct {
	Mapping Mapping
	// Owner has it. It is the zero Owner if it is none of allocnet's, and names
	// may stand as hashes: see names.ParseOwner.
	Owner names.Owner
}

func (e *PortTakenError) Error() string {
	owner := "somebody unnamed"
	if e.Owner != (names.Owner{}) {
		owner = e.Owner.String()
	}
	return fmt.Sprintf("%s is taken by %s", &e.Mapping, owner)
}

// Is finds ErrPortTaken.
func (e *PortTakenError) Is(target error) bool { return target == ErrPortTaken }
