package ruleset

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// BridgePort is a guarded bridge port, a link of the group names.GuardedPortGroup, with what it
// may send. Every other frame that arrives over a link of that group is dropped.
type BridgePort struct {
	Name string
	// MAC is the source of the port's frames. A port without one is that of another
	// attachment, which has the other properties.
	MAC net.HardwareAddr
	// Addresses are the sources of the port's packets, and the addresses for which it
	// answers.
	Addresses []netip.Addr
	// Autoconfigured permits, with every prefix, the addresses that the kernel derives from the MAC and the
	// prefix of a router advertisement (RFC 4862, modified EUI-64).
	Autoconfigured bool
	// Unaddressed permits every address, for a port whose addresses are not known.
	Unaddressed bool
	// Tagged permits frames with VLAN tags, of which only the MAC is checked.
	Tagged bool
	// Unfragmented drops fragments.
	Unfragmented bool
}

// newPortTable returns the table of the guard of bridge ports.
func newPortTable() *table {
	t := &table{family: unix.NFPROTO_BRIDGE, name: names.Table, label: "table bridge " + names.Table}
	link := nftables.TypeIFName
	t.macs = t.newSet("port_macs", types{link, nftables.TypeEtherAddr}, nil)
	t.addresses4 = t.newSet("port_addresses", types{link, nftables.TypeIPAddr}, nil)
	t.addresses6 = t.newSet("port_addresses6", types{link, nftables.TypeIP6Addr}, nil)
	t.targets = t.newSet("port_targets", types{link, number(16)}, nil)
	t.targets.typeOf = linkAndNumber(transportHeader, targetAt, 16)
	t.identifiers = t.newSet("port_identifiers", types{link, number(identifierLen)}, nil)
	t.identifiers.typeOf = linkAndNumber(networkHeader, source6At+identifierAt, identifierLen)
	t.unaddressed = t.newSet("unaddressed_ports", types{link}, nil)
	t.tagged = t.newSet("tagged_ports", types{link}, nil)
	t.policed = t.newSet("policed_ports", types{link}, nil)
	t.unfragmentedPorts = t.newSet("unfragmented_ports", types{link}, nil)
	t.chains = onceChains(t, func() []chain { return append(t.portChains(), t.policedChains()...) })
	return t
}

// number returns the type of a number with a length in bytes.
func number(length uint32) nftables.SetDatatype {
	number := nftables.TypeInteger
	number.Bytes = length
	return number
}

// The headers in nft's encoding: PROTO_BASE_NETWORK_HDR, PROTO_BASE_TRANSPORT_HDR.
const networkHeader, transportHeader = 2, 3

// An interface identifier is the second half of an address.
const identifierAt, identifierLen = 8, 8

// linkAndNumber is nft's encoding of such a pair as "iifname . @th,64,128", the link and the target of
// neighbour discovery. Offset and length are in bytes. Versions of nft that have a name for the target show that of the
// field as a number, too, so an address and a target cannot be in one set.
func linkAndNumber(header, offset, length uint32) []byte {
	const (
		keyTypeOf, kind, data = 3, 0, 1 // NFTNL_UDATA_SET_KEY_TYPEOF, NFTNL_UDATA_SET_TYPEOF_EXPR, _DATA
		payload, meta, concat = 7, 9, 13
	)
	attribute := func(of byte, n uint32) []byte { return append([]byte{of, 4}, native(n)...) }
	nest := func(of byte, parts ...[]byte) []byte {
		all := slices.Concat(parts...)
		return append([]byte{of, byte(len(all))}, all...)
	}
	link := nest(0, attribute(kind, meta), nest(data, attribute(0, uint32(expr.MetaKeyIIFNAME))))
	target := nest(1, attribute(kind, payload), nest(data,
		attribute(0, 0), attribute(1, 0), attribute(2, header), attribute(3, 8*offset), attribute(4, 8*length)))
	return nest(keyTypeOf, attribute(kind, concat), nest(data, link, target))
}

// newHeldPortTable returns the table that a long-lived process holds, so that a flush of
// the ruleset does not let frames of guarded ports through.
func newHeldPortTable() *table {
	t := &table{family: unix.NFPROTO_BRIDGE, name: names.HeldGuardTable, flags: ownedTable, label: "table bridge " + names.HeldGuardTable}
	t.chains = onceChains(t, heldPortChains)
	return t
}

// ports adds the elements of all ports, with those of one set in a row and none twice.
func (l *lister) ports(list []BridgePort) {
	for i := range list {
		if n := list[i].Name; n == "" || len(n) >= unix.IFNAMSIZ {
			l.fail("%s: %q is not the name of a bridge port", ports.label, n)
			return
		}
	}
	first := len(l.list)
	for _, s := range ports.sets {
		for i := range list {
			l.port(s, &list[i], first)
		}
	}
}

// port adds the elements that a port has in one set. Those of the guard begin at first.
func (l *lister) port(s *set, p *BridgePort, first int) {
	name := linkName(p.Name)
	add := func(keys ...[]byte) {
		one := l.add(s, append([][]byte{name}, keys...)...)
		for i := range l.list[first : len(l.list)-1] {
			if l.list[first+i].place() == one.place() {
				l.list = l.list[:len(l.list)-1]
				return
			}
		}
	}
	all := l.removing && !l.replacing && p.MAC != nil
	switch {
	case s == ports.macs:
		if len(p.MAC) != 0 && len(p.MAC) != macLen {
			l.fail("%s: the MAC %s of port %q has %d bytes", s.label, p.MAC, p.Name, len(p.MAC))
		} else if p.MAC != nil {
			add(p.MAC)
		}
	case s == ports.unaddressed && (p.Unaddressed || all), s == ports.tagged && (p.Tagged || all), s == ports.unfragmentedPorts && (p.Unfragmented || all):
		add()
	case s == ports.identifiers && len(p.MAC) == macLen && (p.Autoconfigured || all):
		add(identifier(p.MAC))
	case s == ports.addresses4 || s == ports.addresses6 || s == ports.targets:
		for _, a := range p.Addresses {
			if a = a.Unmap().WithZone(""); a.IsValid() && a.Is4() == (s == ports.addresses4) {
				add(a.AsSlice())
			}
		}
	}
}

const macLen = 6

// identifier returns the interface identifier of a MAC (RFC 4291, appendix A).
func identifier(mac net.HardwareAddr) []byte {
	return []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}

// ofPort describes an element of a bridge port.
func (e *element) ofPort() string {
	port, rest := e.link(), e.key[unix.IFNAMSIZ:e.set.keyLen]
	switch t := e.set.table; e.set {
	case t.macs:
		return fmt.Sprintf("MAC %s of bridge port %q", net.HardwareAddr(rest[:macLen]), port)
	case t.targets:
		target, _ := netip.AddrFromSlice(rest)
		return fmt.Sprintf("neighbour discovery for %s of bridge port %q", target, port)
	case t.identifiers:
		return fmt.Sprintf("interface identifier %x of bridge port %q", rest[:identifierLen], port)
	case t.unaddressed:
		return fmt.Sprintf("every address of bridge port %q", port)
	case t.tagged:
		return fmt.Sprintf("VLAN tags of bridge port %q", port)
	case t.unfragmentedPorts:
		return fmt.Sprintf("no fragments from bridge port %q", port)
	case t.policed:
		return fmt.Sprintf("policy of bridge port %q", port)
	}
	address, _ := netip.AddrFromSlice(rest)
	return fmt.Sprintf("address %s of bridge port %q", address, port)
}
