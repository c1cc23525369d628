package ruleset

import (
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Ruleset is allocnet's tables in the namespace in which it was opened. It is
// safe for concurrent use, also beside other processes, and holds one
// descriptor until Close.
type Ruleset struct {
	socket     *sock.Socket
	holdsGuard atomic.Bool
}

// Open opens the connection. The tables are made by the first Add.
func Open() (*Ruleset, error) {
	s, err := sock.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &Ruleset{socket: s}, nil
}

// Lend lends a connection to the tables in the network namespace of the calling
// thread to a function, which must not keep it.
func Lend(act func(*Ruleset) error) error {
	return sock.Lend(unix.NETLINK_NETFILTER, func(s *sock.Socket) error { return act(&Ruleset{socket: s}) })
}

// Close gives the descriptor back. What is called later returns os.ErrClosed.
func (r *Ruleset) Close() error {
	if err := r.socket.Close(); err != nil {
		return fmt.Errorf("close nf_tables: %w", err)
	}
	return nil
}

// Elements are what one attachment has in the tables, all families together.
type Elements struct {
	// Owner stands in the comment of each.
	Owner names.Owner
	// Masquerade are addresses whose traffic leaves the host with the address of
	// the host, each with the prefix length of its network: within that, and to
	// multicast, it keeps its own. Of networks that lie within each other the
	// largest counts for all; once nobody has that one, it counts until the next Add
	// in one within it.
	Masquerade []netip.Prefix
	// Published are addresses to which Mappings lead, each with the prefix length
	// of its network, and what of that traffic gets the host's own address.
	Published []Published
	Mappings  []Mapping
	// Open are addresses from which and (established, related or redirected)
	// to which the host forwards, whatever iptables' FORWARD policy says.
	Open []netip.Addr
	// Zone notes at the addresses of Open that they are to be sources of this zone of
	// firewalld. Packets do not look at it.
	Zone string
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

// String is the host port alone, as in "host port 127.0.0.1:8080/tcp".
func (m *Mapping) String() string {
	port := strconv.Itoa(int(m.HostPort))
	if m.HostIP.IsValid() {
		port = netip.AddrPortFrom(m.HostIP, m.HostPort).String()
	}
	return "host port " + port + "/" + m.protocol()
}

// protocol is the name of the protocol, or its number where it has none here.
func (m *Mapping) protocol() string {
	protocol, ok := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[m.Protocol]
	if !ok {
		protocol = strconv.Itoa(int(m.Protocol))
	}
	return protocol
}
