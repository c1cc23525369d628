// Package plan has the input of an operation on an allocation: its record with its parsed networks.
// It validates requests, compares them, and computes what a change aims at and what a Status shows.
// Nothing in it changes anything, and only Public looks at the host: whether the network namespace exists.
package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/policy"
)

// Plan is the input of one operation on one allocation: its record and its parsed
// networks. It is made once, at the beginning of the operation, and passed down.
type Plan struct {
	*record.Record
	// Networks are the networks of the record's attachments, in the same order. If a
	// recorded configuration cannot be parsed, its entry is nil and Unreadable has the
	// error.
	Networks   []*conflist.Network
	Unreadable error
	// Others are further attachments of the allocation, which stay as they are.
	Others []record.Attachment
}

// parseRecorded is conflist.Dir.Recorded without a directory: it always parses the
// configuration.
func parseRecorded(_ string, config []byte) (*conflist.Network, error) { return conflist.Parse(config) }

// New makes the plan of a record. parse parses the configurations of its networks.
func New(r *record.Record, parse func(network string, config []byte) (*conflist.Network, error)) *Plan {
	p := &Plan{Record: r}
	var errs []error
	for _, a := range r.Attachments {
		n, err := parse(a.Network, a.Config)
		if err != nil {
			errs = append(errs, fmt.Errorf("recorded configuration of network %q: %w", a.Network, err))
			n = nil
		}
		p.Networks = append(p.Networks, n)
	}
	p.Unreadable = errors.Join(errs...)
	return p
}

// Changed returns the plan with a changed copy of its record, whose networks stay the same. change
// replaces slices and maps of the record; it does not write into them.
func (p *Plan) Changed(change func(*record.Record)) *Plan {
	r := *p.Record
	change(&r)
	other := *p
	other.Record = &r
	return &other
}

// Add adds an attachment to the record.
func (p *Plan) Add(a record.Attachment, n *conflist.Network) {
	p.Attachments = append(p.Attachments, a)
	p.Networks = append(p.Networks, n)
}

// Readable returns the networks whose configuration could be parsed.
func (p *Plan) Readable() []*conflist.Network {
	return slices.DeleteFunc(slices.Clone(p.Networks), func(n *conflist.Network) bool { return n == nil })
}

// Unchecked reports whether a network of the plan has no CHECK.
func (p *Plan) Unchecked() bool {
	return slices.ContainsFunc(p.Networks, func(n *conflist.Network) bool { return n != nil && !n.HasCheck() })
}

// Drop removes all attachments from the record.
func (p *Plan) Drop() { p.Attachments, p.Networks, p.Unreadable = nil, nil, nil }

// PolicyOrNil returns nil for the zero value, which means the same.
func PolicyOrNil(p *policy.Policy) *policy.Policy {
	if p.IsEmpty() {
		return nil
	}
	return p
}

// AddConflists adds the networks whose configuration the allocation contains.
func (p *Plan) AddConflists(a *allocnet.Allocation) error {
	for i, text := range a.Conflists {
		if err := ValidateDocument(fmt.Sprintf("conflists[%d]", i), text); err != nil {
			return err
		}
		n, err := conflist.Parse(text)
		if err != nil {
			return fmt.Errorf("%w: conflists[%d]: %w", allocnet.ErrInvalidAllocation, i, err)
		}
		if n.IsOurs() {
			return fmt.Errorf("%w: conflists[%d]: type %q would call itself", allocnet.ErrInvalidAllocation, i, conflist.OwnType)
		}
		if err := p.AddNetwork(n); err != nil {
			return err
		}
	}
	return nil
}

// AddNetwork adds a network to the plan.
func (p *Plan) AddNetwork(n *conflist.Network) error {
	for _, earlier := range p.Attachments {
		if earlier.Network == n.Name {
			return fmt.Errorf("%w: network %q is named twice", allocnet.ErrInvalidAllocation, n.Name)
		}
	}
	if err := ValidateNetworkName(n); err != nil {
		return err
	}
	n, err := n.WithoutCapabilities(p.declared(OneInterface)...)
	if err != nil {
		return err
	}
	p.Add(record.Attachment{
		Network: n.Name, IfName: interfaceName(p.Record, n), Config: n.Bytes, Loopback: n.IsLoopback(),
	}, n)
	return nil
}

// interfaceName returns the interface name of the next attachment of a record. A
// loopback network uses lo and does not count towards the numbers of the others. If the
// name requested for the first attachment equals a numbered name, the attachment that
// would have that number gets the name of number 0 instead.
func interfaceName(r *record.Record, n *conflist.Network) string {
	if n.IsLoopback() {
		return rtnl.LoopbackName
	}
	i := 0
	for _, a := range r.Attachments {
		if !a.Loopback {
			i++
		}
	}
	numbered := func(i int) string { return r.InterfacePrefix + strconv.Itoa(i) }
	switch {
	case r.Interface == "":
		return numbered(i)
	case i == 0:
		return r.Interface
	case numbered(i) == r.Interface:
		return numbered(0)
	}
	return numbered(i)
}

// PrimaryOf returns the index of the primary attachment of a record: the first one that
// is not a loopback network, or 0 if all are.
func PrimaryOf(r *record.Record) int {
	return max(0, slices.IndexFunc(r.Attachments, func(a record.Attachment) bool { return !a.Loopback }))
}

// PreviousOf parses the prevResult of a record. Every operation gets its own copy,
// because an ADD may change it.
func PreviousOf(r *record.Record) (*types100.Result, error) {
	if r.Previous == nil {
		return nil, nil
	}
	result, err := engine.ParseResult(r.Previous)
	if err != nil {
		return nil, fmt.Errorf("%w: prevResult: %w", allocnet.ErrInvalidAllocation, err)
	}
	return result, nil
}
