package allocnet

import (
	"fmt"

	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// Change is a change of an allocation that is set up.
type Change struct {
	// Revision is the Revision of the Record or Status on which the change is based: if
	// the allocation has been changed since, Update returns a *RevisionError. "" permits
	// any.
	Revision string `json:"revision,omitempty"`
	// Unpublish are host ports that are published no longer. To and Label have no meaning,
	// an empty HostIP stands for every HostIP, and empty Protocols for every protocol.
	// Unpublishing a port that is not published is allowed.
	Unpublish []portmap.Port `json:"unpublish,omitempty"`
	// Publish are host ports that are published, in the same transaction. A host port that
	// the allocation has published to another port or on another address must be in
	// Unpublish.
	Publish []portmap.Port `json:"publish,omitempty"`
	// Labels are labels that get a value; nil removes one. The others stay. A label that the
	// allocation does not have may be removed.
	Labels map[string]*string `json:"labels,omitempty"`
	// AllowReservedLabels is that of an Allocation.
	AllowReservedLabels bool `json:"allowReservedLabels,omitempty"`
	// Bandwidth are limits that take the place of all that the allocation has; nil changes
	// none. A direction without a rate is not limited, so the zero value ends all limits.
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"`
	// Policy replaces the policy; nil leaves it. The zero value allows everything.
	Policy *policy.Policy `json:"policy,omitempty"`
}

// AttachOptions are options of Attach. The zero value is valid.
type AttachOptions struct {
	// Interface is the name of the new interface; default the lowest number that is free, as
	// "eth1".
	Interface string `json:"interface,omitempty"`
	// Revision is that of a Change.
	Revision string `json:"revision,omitempty"`
}

// RevisionError reports that an allocation was changed since the revision on which a Change is
// based. Nothing was changed. errors.Is finds ErrRevision.
type RevisionError struct {
	ID      string
	Wanted  string // the Revision of the Change
	Current string // that of the Record
}

// Error implements error.
func (e *RevisionError) Error() string {
	return fmt.Sprintf("allocation %q was changed meanwhile: it has revision %q, not %q; read its record again", e.ID, e.Current, e.Wanted)
}

// Unwrap returns ErrRevision.
func (e *RevisionError) Unwrap() error { return ErrRevision }
