package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// InterfaceAt returns the index of the attachment with an interface; -1 if there is none.
func (p *Plan) InterfaceAt(name string) int {
	return slices.IndexFunc(p.Attachments, func(a record.Attachment) bool { return a.IfName == name })
}

// IsDetaching reports whether the removal of the attachment with an interface has begun. An
// attachment that is being added has no result in the record.
func (p *Plan) IsDetaching(name string) bool {
	return p.Pending != nil && p.Pending.IfName == name && p.Pending.Result != nil
}

// Single returns the plan of one attachment alone, without the host ports of the allocation.
func (p *Plan) Single(a record.Attachment, n *conflist.Network) *Plan {
	r := *p.Record
	r.Attachments, r.Pending, r.Previous, r.Ports = []record.Attachment{a}, nil, nil, nil
	return &Plan{Record: &r, Networks: []*conflist.Network{n}, Others: p.Attachments}
}

// Detachable returns the index of the attachment with an interface, if Detach can remove it.
func (p *Plan) Detachable(interfaceName string) (int, error) {
	if err := p.RequireNative(); err != nil {
		return 0, err
	}
	i := p.InterfaceAt(interfaceName)
	switch {
	case i < 0:
		return 0, &noInterfaceError{p.Record}
	case i == PrimaryOf(p.Record) || p.Attachments[i].Loopback:
		return 0, fmt.Errorf("%w: it is that of the first network, or the loopback: tear the allocation down", allocnet.ErrCannotUpdate)
	case len(p.Ports) > 0 && p.Networks[i].Declares(portmap.Capability):
		return 0, fmt.Errorf("%w: the network publishes the host ports: unpublish them first", allocnet.ErrCannotUpdate)
	}
	return i, nil
}

// noInterfaceError reports that an allocation does not have an interface. errors.Is finds ErrNotFound.
type noInterfaceError struct{ of *record.Record }

func (e *noInterfaceError) Error() string {
	var has []string
	for _, a := range e.of.Attachments {
		has = append(has, a.IfName)
	}
	return "it has no such interface; it has " + strings.Join(has, ", ")
}

func (e *noInterfaceError) Is(target error) bool { return target == allocnet.ErrNotFound }

// With returns the plan with other attachments, and with their networks.
func (p *Plan) With(attachments []record.Attachment, networks []*conflist.Network) *Plan {
	other := p.Changed(func(r *record.Record) {
		r.Attachments, r.Pending = attachments, nil
		r.Revision++
		if !r.Inline {
			r.Requested = nil
			for _, a := range attachments {
				r.Requested = append(r.Requested, a.Network)
			}
		}
	})
	other.Networks = networks
	return other
}
