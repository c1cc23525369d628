package ruleset

import (
	"errors"
	"fmt"

	cnitypes "github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/portmap"
)

var (
	// ErrAddressTaken: an address belongs to another attachment. errors.Is also finds
	// allocnet.ErrAddressUnavailable.
	ErrAddressTaken error = addressTaken{}
	// ErrGroupTaken: the links of a policy's group lead to another policy.
	ErrGroupTaken = errors.New("the links of the group lead to another policy")
	// ErrMissing: elements or parts of the tables do not exist or are not as they
	// should be.
	ErrMissing = errors.New("nftables rules are missing")
	// ErrPortTaken: a host port belongs to another owner: see PortTakenError.
	ErrPortTaken = allocnet.ErrPortTaken
)

type addressTaken struct{}

func (addressTaken) Error() string { return "it belongs to another attachment" }

func (addressTaken) Is(target error) bool { return target == allocnet.ErrAddressUnavailable }

// PortTakenError names a host port that another owner has. errors.Is finds
// ErrPortTaken.
type PortTakenError = allocnet.PortTakenError

// portTaken returns the error for a mapping whose host port belongs to owner: the zero
// Owner if the element was not made by allocnet.
func portTaken(m Mapping, owner names.Owner) *PortTakenError {
	taken := &PortTakenError{
		Mapping: portmap.Mapping{HostPort: int(m.HostPort), ContainerPort: int(m.To.Port()), Protocol: m.protocol()}, To: m.To,
		Network: owner.Network, ID: owner.ID, Interface: owner.IfName, Instance: owner.Instance,
	}
	if m.HostIP.IsValid() {
		taken.Mapping.HostIP = m.HostIP.String()
	}
	return taken
}

// requestedTwice returns the error for a host port that two mappings of one attachment give
// different destinations.
func requestedTwice(m, other Mapping) error {
	return cnitypes.NewError(cnitypes.ErrInvalidNetworkConfig, fmt.Sprintf("host port %s is requested twice", portTaken(m, names.Owner{}).Mapping.Published()),
		fmt.Sprintf("for %s and for %s", other.To, m.To))
}
