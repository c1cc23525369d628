package ruleset

import (
	"context"
	"errors"
	"net/netip"

	"github.com/allocnet/allocnet/internal/names"
)

// Ruleset is allocnet's tables in the namespace in which it was opened. It is
// safe for concurrent use, also beside other processes, and holds one
// descriptor until Close.
type Ruleset struct{}

// Open opens the connection. The tables are made by the first Add.
func Open() (*Ruleset, error) { return nil, errors.New("not there yet") }

// Close gives the descriptor back.
func (r *Ruleset) Close() error { return nil }

// Elements are what one attachment has in the tables, all families together.
type Elements struct {
	// Owner stands in the comment of each.
	Owner names.Owner
	// Masquerade are addresses whose traffic leaves the host with the address of
	// the host, each with the prefix length of its network: within that, and to
	// multicast, it keeps its own.
	Masquerade []netip.Prefix
	// Published are addresses to which Mappings lead, each with the prefix length
	// of its network, and what of that traffic gets the host's own address.
	Published []Published
	Mappings  []Mapping
	// Open are addresses from which and (established, related or redirected)
	// to which the host forwards, whatever iptables' FORWARD policy says.
	Open []netip.Addr
	// Guarded are bridges that the firewall plugin's ingressPolicy closes. They
	// belong to nobody and stay.
	Guarded []Guard
}

// Published is an address behind host ports.
type Published struct {
	Address netip.Prefix
	SNAT    SNAT
}

// SNAT says which connections to a host port get a source address of the host.
type SNAT string

// The ways of Published.
const (
	SNATNone  SNAT = "none"
	SNATLocal SNAT = "local" // those from 127.0.0.0/8 and from the address's own network
	SNATAll   SNAT = "all"
)

// Mapping is one host port of one protocol.
type Mapping struct {
	HostIP   netip.Addr // the zero Addr is every address of the host of To's family
	Protocol uint8      // IPPROTO_TCP, _UDP, _SCTP
	HostPort uint16
	To       netip.AddrPort
}

// Guard is a bridge whose traffic with other guarded bridges is dropped, and
// with Isolated, between its own ports, too.
type Guard struct {
	Bridge   string
	Isolated bool
}

var (
	// ErrMissing: elements, or parts of the tables, are not as they should be.
	ErrMissing = errors.New("nftables rules are missing")
	// ErrPortTaken: a host port belongs to another owner: see PortTakenError.
	ErrPortTaken = errors.New("host port is taken")
)

// Add puts the elements in, in one transaction per family, and makes the tables
// where they are missing. It is idempotent. A mapping that another owner has is a
// *PortTakenError, and then nothing was added.
func (r *Ruleset) Add(ctx context.Context, e *Elements) error { return nil }

// Del takes those of the elements out that belong to the owner. It is
// idempotent; Guarded and what a network shares stay.
func (r *Ruleset) Del(ctx context.Context, e *Elements) error { return nil }

// Check finds by key whether all elements are in and the tables complete;
// ErrMissing names what is not.
func (r *Ruleset) Check(ctx context.Context, e *Elements) error { return nil }

// DelOwned removes every element whose owner the function names for removal. It
// reads all elements.
func (r *Ruleset) DelOwned(ctx context.Context, remove func(names.Owner) bool) error { return nil }

// Owned returns the text of every element whose owner the function names, for
// people. It reads all elements.
func (r *Ruleset) Owned(ctx context.Context, of func(names.Owner) bool) ([]string, error) {
	return nil, nil
}
