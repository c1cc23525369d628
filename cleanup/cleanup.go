package cleanup

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
)

// Attachment is one network that an allocation was attached to.
type Attachment struct {
	Network string // name of the network
	IfName  string // interface inside the sandbox
	Config  []byte // self-contained conflist of ADD, as JSON; nil if unknown
	Result  []byte // CNI result of ADD, as JSON; nil if unknown
}

// Target is the allocation whose leftovers are searched.
type Target struct {
	// ID is the CNI container ID.
	ID string
	// Netns is the path of the network namespace, which may no longer exist.
	Netns string
	// Attachments are the networks of the allocation. If there are none, objects with
	// the ID count in every network.
	Attachments []Attachment
	// IfNames are the interfaces of the allocation inside the sandbox if other allocations
	// may have the same ID. Then only objects that name one of them count, and, if there
	// are no Attachments, none that does not name an interface. Without IfNames, the ID is
	// the allocation's alone.
	IfNames []string
	// Ports are the published ports.
	Ports []portmap.Mapping
	// Addresses are addresses of the allocation in addition to those of the results.
	Addresses []Address
	// StateDir is the state directory of the allocation's record; "" is the default
	// one. Owners of objects in the kernel are derived from it.
	StateDir string
	// Instance is the recorded instance in the owners of kernel objects; nil selects
	// that of StateDir.
	Instance *string
	// CacheDirs are libcni cache directories. The files are
	// <dir>/results/<network>-<ID>-<IfName>.
	CacheDirs []string
}

// Kind is the kind of a leftover.
type Kind = allocnet.Kind

// The kinds of leftovers.
const (
	KindLink            = allocnet.KindLink
	KindIPTablesRule    = allocnet.KindIPTablesRule
	KindIPTablesChain   = allocnet.KindIPTablesChain
	KindNFTablesRule    = allocnet.KindNFTablesRule
	KindNFTablesChain   = allocnet.KindNFTablesChain
	KindNFTablesElement = allocnet.KindNFTablesElement
	KindFirewalldSource = allocnet.KindFirewalldSource
	KindRoute           = allocnet.KindRoute
	KindLease           = allocnet.KindLease
	KindConntrack       = allocnet.KindConntrack
	KindCache           = allocnet.KindCache
	KindBackup          = allocnet.KindBackup
)

// Leftover is one object that an allocation left on the host.
type Leftover = allocnet.Leftover

// Audit returns the objects that the allocation left on the host, sorted, and changes
// nothing. With an error, it returns the leftovers that it found. It is safe for
// concurrent use.
//
// If something cannot be examined, Audit returns an error. A missing or broken iptables
// is an error unless the kernel shows that its tables have no rules of the allocation.
// A kernel without nftables or connection tracking has no rules or entries.
func Audit(ctx context.Context, t Target) ([]Leftover, error) {
	found, err := newSearch(t).find(ctx)
	return sorted(found), err
}

// Force removes the objects that Audit would find, and returns the removed ones,
// sorted. It tries every step and joins the errors. Objects that no longer exist are
// not an error, so Force can be repeated and can run concurrently, also for the same
// allocation. If a rule that cannot be removed keeps creating connection tracking
// entries, Force deletes them a few times and returns no error for the rest; Audit
// reports them.
func Force(ctx context.Context, t Target) ([]Leftover, error) {
	s := newSearch(t)
	_, findErr := s.find(ctx)
	removed, err := s.remove(ctx)
	return sorted(removed), errors.Join(findErr, err)
}

// FlushConntrack deletes the connection tracking entries of connections from or to an
// address of the allocation, unless another allocation holds the address now. It also
// deletes UDP entries from outside to its host ports, which would prevent clients from
// reaching the next owner of the port. Clients that keep sending create some of them
// again at once, so Audit counts only TCP, UDP and SCTP entries with DNAT to one of the
// addresses. FlushConntrack is safe for concurrent use. A kernel without connection
// tracking is not an error.
func FlushConntrack(ctx context.Context, t Target) error {
	return newSearch(t).flush(ctx)
}

// sorted sorts leftovers, because the kernel lists objects in any order.
func sorted(list []Leftover) []Leftover {
	slices.SortStableFunc(list, func(a, b Leftover) int {
		return cmp.Or(
			cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Network, b.Network),
			cmp.Compare(a.Where, b.Where),
			cmp.Compare(a.Object, b.Object),
		)
	})
	return list
}
