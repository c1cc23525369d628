package ruleset

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Ruleset gives access to allocnet's tables in the network namespace in which it was
// opened. It is safe for concurrent use, also by several processes, and holds one
// descriptor until Close.
type Ruleset struct {
	// MayNarrow permits a new host port of one address that another container has on every
	// address: the kernel prefers the mapping of the single address. Set it before the first use.
	MayNarrow bool

	socket    *sock.Socket
	guarded   [3]atomic.Bool  // the table of a Family's guard was complete
	holds     [3]atomic.Int32 // what is known of the owner of the second one: see holdUnknown
	witnesses witnesses
	intact    intact
	attached  func() (map[string]bool, error) // see Attached
	portsLost func(context.Context) error     // see PortsLost

	rulesRestored func(ctx context.Context, policies bool) // see RulesRestored
}

// Open opens the connection to the kernel. The first Add makes the tables.
func Open() (*Ruleset, error) {
	s, err := sock.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &Ruleset{socket: s}, nil
}

// Lend calls a function with a Ruleset in the network namespace of the calling thread.
// The function must not keep it.
func Lend(act func(*Ruleset) error) error {
	return sock.Lend(unix.NETLINK_NETFILTER, func(s *sock.Socket) error { return act(&Ruleset{socket: s}) })
}

// Close closes the descriptor. Later calls return os.ErrClosed.
func (r *Ruleset) Close() error {
	if err := r.socket.Close(); err != nil {
		return fmt.Errorf("close nf_tables: %w", err)
	}
	return nil
}

// Elements are the elements of one attachment in the tables of all families.
type Elements struct {
	// Owner is the comment of every element that is not shared.
	Owner names.Owner
	// Masquerade are addresses whose packets leave the host with an address of the
	// host, each with the prefix length of its network. Packets to that network and
	// to multicast addresses keep their source address. If one network contains
	// another, the larger one is used for both. After the last address of the
	// larger network was removed, it is used until the next Add of an address in
	// the smaller one.
	Masquerade []netip.Prefix
	// Exempt are further networks to which packets of Masquerade keep their source
	// address. An exemption is that of a whole network, so that its elements do not
	// become more with the attachments. They have no owner, and Del does not remove
	// them.
	Exempt []Exemption
	// Published are addresses to which Mappings lead, each with the prefix length
	// of its network and the choice of connections that get a source address of the
	// host.
	Published []Published
	Mappings  []Mapping
	// MayWait lets Mappings wait while an older attachment has their host port, instead of a
	// *PortTakenError. Attachments of one container wait in any case.
	MayWait bool
	// Order is the place of the attachment among all that have requested one of its host ports, from
	// 1: an attachment takes a host port over from those with a higher one, which then wait. With 0 it
	// is behind all attachments that have the host port or wait for it.
	Order int
	// Open are addresses from which the host forwards packets whatever iptables'
	// FORWARD policy is. To them it forwards packets of established, related and
	// redirected connections.
	Open []netip.Addr
	// Zone is stored with the addresses of Open: the zone of firewalld that they
	// are to be sources of. It has no effect on packets.
	Zone string
	// PublishedOnly are addresses, each with the prefix length of its network, to which the host
	// forwards only packets of established, related and redirected connections, and from others of
	// these addresses in the same network.
	PublishedOnly []netip.Prefix
	// Announced are routes in the host's routing tables. They have no effect on packets:
	// the elements name the owners of the routes.
	Announced []Route
	// Guarded are the bridges that the firewall plugin's ingressPolicy closes. They
	// have no owner, and Del does not remove them.
	Guarded []Guard
	// Ports are guarded bridge ports, with what they may send.
	Ports []BridgePort
	// Unfragmented are links of routed networks from which fragments are dropped.
	Unfragmented []string
	// Known are addresses of an allocation in a network with policies.
	Known []netip.Addr
	// Policed are those of an allocation with a policy.
	Policed []Policed
}

// Append adds the elements of more, which have the same owner. It keeps the Zone of e.
func (e *Elements) Append(more *Elements) {
	e.Masquerade = append(e.Masquerade, more.Masquerade...)
	e.Exempt = append(e.Exempt, more.Exempt...)
	e.Published = append(e.Published, more.Published...)
	e.Mappings = append(e.Mappings, more.Mappings...)
	e.MayWait, e.Order = e.MayWait || more.MayWait, max(e.Order, more.Order)
	e.Open = append(e.Open, more.Open...)
	e.PublishedOnly = append(e.PublishedOnly, more.PublishedOnly...)
	e.Announced = append(e.Announced, more.Announced...)
	e.Guarded = append(e.Guarded, more.Guarded...)
	e.Ports = append(e.Ports, more.Ports...)
	e.Unfragmented = append(e.Unfragmented, more.Unfragmented...)
	e.Known = append(e.Known, more.Known...)
	e.Policed = append(e.Policed, more.Policed...)
}

// Policed is an address to which a policy applies. Packets that it denies are counted.
type Policed struct {
	Address netip.Addr
	// ByAddress is true if there are packets of the address on a link that does not lead to
	// the policy: a port of a bridge. Then Policy, Egress and Ingress are the Policy's ID, and
	// whether it has stages of the direction.
	ByAddress bool
	// Port is the port of the bridge that has the address; "" if a link leads to the policy.
	Port            string
	Policy          string
	Egress, Ingress bool
}

// Exemption is a pair of networks of one family between which the host does not
// masquerade. Exemptions may contain one another. Add refuses one whose From is within
// that of an existing exemption, while its To contains the other's.
type Exemption struct{ From, To netip.Prefix }

// Published is an address to which host ports lead.
type Published struct {
	Address netip.Prefix
	SNAT    SNAT
}

// SNAT selects the connections to a host port that get a source address of the host.
type SNAT string

// The values of SNAT.
const (
	SNATNone  SNAT = "none"
	SNATLocal SNAT = "local" // those from 127.0.0.0/8 and from the address's own network
	SNATAll   SNAT = "all"
)

// Mapping is one host port of one protocol, and its destination.
type Mapping struct {
	HostIP   netip.Addr // the zero Addr stands for every address of the host, of To's family
	Protocol uint8      // IPPROTO_TCP, _UDP, _SCTP
	HostPort uint16
	To       netip.AddrPort
}

// Guard is a bridge whose traffic with other guarded bridges is dropped. With Isolated,
// the traffic between its own ports is dropped as well.
type Guard struct {
	Bridge   string
	Isolated bool
}

// String returns the host port, as in "host port 127.0.0.1:8080/tcp".
func (m *Mapping) String() string {
	port := strconv.Itoa(int(m.HostPort))
	if m.HostIP.IsValid() {
		port = netip.AddrPortFrom(m.HostIP, m.HostPort).String()
	}
	return "host port " + port + "/" + m.protocol()
}

// protocol returns the name of the protocol, or its number if it is not TCP, UDP or
// SCTP.
func (m *Mapping) protocol() string {
	protocol, ok := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[m.Protocol]
	if !ok {
		protocol = strconv.Itoa(int(m.Protocol))
	}
	return protocol
}
