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
	Config  []byte // conflist that ADD was given, as JSON, complete in itself; nil when unknown
	Result  []byte // CNI result of ADD, as JSON; nil when unknown
}

// Target is an allocation whose leftovers are looked for.
type Target struct {
	// ID is the CNI container ID.
	ID string
	// Netns is the path of the network namespace; it need not exist any more.
	Netns string
	// Attachments are the networks to look at. With none, whatever bears the ID counts, whichever its network.
	Attachments []Attachment
	// Ports are the published ports.
	Ports []portmap.Mapping
	// Addresses are addresses of the allocation beside those of the results.
	Addresses []Address
	// StateDir is where the allocation's record is kept, which objects in the kernel tell their owners by; "" is the
	// default one.
	StateDir string
	// Instance is the instance of the owners of objects in the kernel, as the record has it; nil for that of StateDir.
	Instance *string
	// CacheDirs are libcni cache directories. Results lie in <dir>/results/<network>-<ID>-<IfName>.
	CacheDirs []string
}

// Kind says what sort of object a leftover is.
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
	KindLease           = allocnet.KindLease
	KindConntrack       = allocnet.KindConntrack
	KindCache           = allocnet.KindCache
	KindBackup          = allocnet.KindBackup
)

// Leftover is one object that an allocation left on the host.
type Leftover = allocnet.Leftover

// Audit returns what the allocation left on the host, sorted, and changes nothing. Leftovers are returned beside
// an error too: what one step could not look at does not hide what the others found. It is safe for concurrent
// use.
//
// What cannot be looked at is an error, never clean. An iptables that is missing or does not work is an error unless
// the kernel shows that its tables have no rules of the allocation. A kernel without nftables or connection tracking
// has no rules or entries.
func Audit(ctx context.Context, t Target) ([]Leftover, error) {
	found, err := newSearch(t).find(ctx)
	return sorted(found), err
}

// Force removes what Audit would find, and returns what it removed, sorted. Every step is tried, and the errors
// are joined. What is gone already, or goes meanwhile, is no error, so Force can be repeated and can run
// concurrently, for the same allocation too. While a rule that cannot be removed goes on making connection tracking
// entries, Force deletes them a few times and leaves the rest, without an error: Audit tells what is left.
func Force(ctx context.Context, t Target) ([]Leftover, error) {
	s := newSearch(t)
	_, findErr := s.find(ctx)
	removed, err := s.remove(ctx)
	return sorted(removed), errors.Join(findErr, err)
}

// FlushConntrack deletes the connection tracking entries of the allocation: those of connections to or from one of its
// addresses, unless another allocation holds the address now; and UDP entries from outside to one of its host ports,
// which would keep a client from reaching the port's next owner. A client that keeps sending makes some of them again
// at once: Audit counts only TCP, UDP and SCTP entries DNATed to one of the addresses. It is safe for concurrent use.
// A kernel without connection tracking is not an error.
func FlushConntrack(ctx context.Context, t Target) error {
	return newSearch(t).flush(ctx)
}

// sorted puts leftovers in an order that does not depend on that of the kernel's lists.
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
