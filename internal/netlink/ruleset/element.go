package ruleset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// element is an element of a set or a map in the kernel. Two elements are the same if
// they compare equal.
type element struct {
	set *set
	key key
	end key // the last key of an interval
	value
	owner string
	// network is one more than the prefix length of the network that an address
	// belongs to; 0 if the address has none or it is not known.
	network uint8
	// zone is the firewalld zone that an open address was added to, if any.
	zone string
	// order is the place of the attachment among those that have requested a host port: see
	// Elements.Order. Here the first one has 0.
	order uint32
}

type key [48]byte

// value is what a map contains for a key: data or a verdict, which may lead to a chain.
type value struct {
	data    [20]byte
	verdict int32
	chain   string
}

// place identifies an element: a set contains at most one element for a key.
type place struct {
	set *set
	key key
}

func (e *element) place() place { return place{e.set, e.key} }

// covers reports whether the interval e contains the interval other. Without intervals,
// it reports whether the keys are the same.
func (e *element) covers(other *element) bool {
	if !e.set.interval {
		return e.key == other.key
	}
	half, whole := e.set.keyLen/2, e.set.keyLen
	return within(other.key[:half], other.end[:half], e.key[:half], e.end[:half]) &&
		within(other.key[half:whole], other.end[half:whole], e.key[half:whole], e.end[half:whole])
}

// within reports whether the addresses from first to last are within those from low to
// high.
func within(first, last, low, high []byte) bool {
	return bytes.Compare(low, first) <= 0 && bytes.Compare(last, high) <= 0
}

// maxList is the maximum size in bytes of the elements in one message: the length of an
// attribute has 16 bits.
const maxList = 60 << 10

// putElements appends messages about the elements, at least one for each run of
// elements of the same set. With the kind NFT_MSG_NEWSETELEM they add the elements,
// otherwise they contain the keys only.
func putElements(b *sock.Requests, list []element, kind uint16) {
	flags := uint16(0)
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	putElementsWith(b, list, kind, flags)
}

// putElementsWith is putElements with flags. Elements of shared sets may always exist.
func putElementsWith(b *sock.Requests, list []element, kind, flags uint16) {
	for i := 0; i < len(list); {
		s, flags := list[i].set, flags
		if s.shared {
			flags &^= unix.NLM_F_EXCL
		}
		nest := beginElements(b, s, kind, flags)
		for start := nest; i < len(list) && list[i].set == s && b.Size()-start < maxList; i++ {
			list[i].put(b, kind == unix.NFT_MSG_NEWSETELEM)
		}
		b.End(nest)
	}
}

func beginElements(b *sock.Requests, s *set, kind, flags uint16) (nest int) {
	s.table.begin(b, s.label, kind, flags)
	b.CString(unix.NFTA_SET_ELEM_LIST_TABLE, s.table.name)
	b.CString(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	return b.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
}

// emptySet appends the message that removes all elements of a set.
func emptySet(b *sock.Requests, s *set) {
	s.table.begin(b, s.label, unix.NFT_MSG_DELSETELEM, 0)
	b.CString(unix.NFTA_SET_ELEM_LIST_TABLE, s.table.name)
	b.CString(unix.NFTA_SET_ELEM_LIST_SET, s.name)
}

const attrKeyEnd = 10 // NFTA_SET_ELEM_KEY_END

// put appends an element: its key and, if whole is true, its value and its owner.
func (e *element) put(b *sock.Requests, whole bool) {
	one := b.Nest(unix.NFTA_LIST_ELEM)
	putData(b, unix.NFTA_SET_ELEM_KEY, e.key[:e.set.keyLen])
	if e.set.interval {
		putData(b, attrKeyEnd, e.end[:e.set.keyLen])
	}
	if whole {
		e.putValue(b)
		if e.owner != "" {
			putComment(b, unix.NFTA_SET_ELEM_USERDATA, e.owner, e.notes()...)
		}
	}
	b.End(one)
}

// Types of records in user data. nft does not know and ignores them.
const (
	dataNetwork = 0x61
	dataZone    = 0x62
	dataOrder   = 0x63
)

// maxZone is the maximum length of a zone's name: the user data of an element has at
// most 256 bytes.
const maxZone = 64

// notes returns the records that follow the comment in the user data.
func (e *element) notes() []byte {
	var notes []byte
	if e.network != 0 {
		notes = []byte{dataNetwork, 1, e.network}
	}
	if e.zone != "" {
		notes = append(append(notes, dataZone, byte(len(e.zone))), e.zone...)
	}
	if e.order != 0 {
		notes = binary.NativeEndian.AppendUint32(append(notes, dataOrder, 4), e.order)
	}
	return notes
}

func putData(b *sock.Requests, kind uint16, data []byte) {
	nest := b.Nest(kind)
	b.Attribute(unix.NFTA_DATA_VALUE, data)
	b.End(nest)
}

func (e *element) putValue(b *sock.Requests) {
	if !e.set.verdicts() {
		if e.set.data != nil {
			putData(b, unix.NFTA_SET_ELEM_DATA, e.value.data[:e.set.dataLen])
		}
		return
	}
	data := b.Nest(unix.NFTA_SET_ELEM_DATA)
	verdict := b.Nest(unix.NFTA_DATA_VERDICT)
	b.Uint32BE(unix.NFTA_VERDICT_CODE, uint32(e.verdict))
	if e.value.chain != "" {
		b.CString(unix.NFTA_VERDICT_CHAIN, e.value.chain)
	}
	b.End(verdict)
	b.End(data)
}

// eachElement calls each with the attributes of every element in an answer.
func eachElement(payload []byte, each func(attrs []byte)) {
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		if kind == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			sock.EachAttribute(value, func(_ uint16, attrs []byte) { each(attrs) })
		}
	})
}

func readElement(s *set, attrs []byte) element {
	e := element{set: s}
	sock.EachAttribute(attrs, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			readKey(&e.key, value)
		case attrKeyEnd:
			readKey(&e.end, value)
		case unix.NFTA_SET_ELEM_DATA:
			sock.EachAttribute(value, func(kind uint16, value []byte) {
				e.readValue(kind, value)
			})
		case unix.NFTA_SET_ELEM_USERDATA:
			e.owner = commentOf(value)
			if n := recordOf(value, dataNetwork); len(n) == 1 {
				e.network = n[0]
			}
			e.zone = string(recordOf(value, dataZone))
			if n := recordOf(value, dataOrder); len(n) == 4 {
				e.order = binary.NativeEndian.Uint32(n)
			}
		}
	})
	return e
}

func readKey(k *key, data []byte) {
	sock.EachAttribute(data, func(_ uint16, value []byte) {
		copy(k[:], value)
	})
}

func (e *element) readValue(kind uint16, v []byte) {
	if kind != unix.NFTA_DATA_VERDICT {
		copy(e.value.data[:], v)
		return
	}
	sock.EachAttribute(v, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_VERDICT_CODE:
			e.verdict = int32(sock.Uint32BE(value))
		case unix.NFTA_VERDICT_CHAIN:
			e.value.chain = sock.String(value)
		}
	})
}

// String returns a description of the element for messages.
func (e *element) String() string {
	switch {
	case e.set.table.policy != nil:
		return e.policyString()
	case e.set.table.needing[0] != nil:
		return fmt.Sprintf("address %s that needs a policy", e.address())
	}
	switch t := e.set.table; e.set {
	case t.hostPorts, t.hostIPPorts:
		m := e.mapping()
		return fmt.Sprintf("%s -> %s", &m, m.To)
	case t.standby:
		active := e.active()
		return active.String() + " (standby)"
	case t.snatAll, t.snatLocal, t.snatNone:
		return fmt.Sprintf("published address %s (%s)", e.address(), strings.Replace(e.set.name, "_", " ", 1))
	case t.masqueraded:
		return fmt.Sprintf("masqueraded address %s", e.address())
	case t.open:
		if e.zone != "" {
			return fmt.Sprintf("open address %s (firewalld zone %s)", e.address(), e.zone)
		}
		return fmt.Sprintf("open address %s", e.address())
	case t.publishedOnly:
		return fmt.Sprintf("address %s that only host ports reach", e.address())
	case t.announced:
		r := e.announced()
		return fmt.Sprintf("announced address %s (table %d)", e.address(), r.Table)
	case t.contacted, t.contactedPorts, t.contactedMissed:
		return fmt.Sprintf("%s %x", strings.Replace(e.set.name, "_", " ", 1), e.key[:e.set.keyLen])
	case t.services:
		return fmt.Sprintf("address %s of a service", e.address())
	case t.networks:
		last, _ := netip.AddrFromSlice(e.end[:e.set.keyLen/2])
		return fmt.Sprintf("network %s-%s", e.address(), last)
	case t.exempt:
		return fmt.Sprintf("exemption from masquerading, %s", e.pair())
	case t.macs, t.addresses4, t.addresses6, t.targets, t.identifiers, t.unaddressed, t.tagged, t.policed, t.unfragmentedPorts:
		return e.ofPort()
	case t.unfragmented:
		return fmt.Sprintf("no fragments from %q", e.link())
	case t.guards:
		if e.verdict == int32(expr.VerdictDrop) {
			return fmt.Sprintf("isolated ports of bridge %q", e.link())
		}
		return fmt.Sprintf("passage within bridge %q", e.link())
	default:
		return fmt.Sprintf("guarded bridge %q", e.link())
	}
}

func (e *element) address() netip.Addr {
	n := int(e.set.table.addrLen)
	if n == 0 { // a table of both families
		n = e.set.keyLen
	}
	a, _ := netip.AddrFromSlice(e.key[:n])
	return a
}

// pair describes the networks of an exemption.
func (e *element) pair() string {
	n := e.set.table.addrLen
	address := func(bytes []byte) netip.Addr {
		a, _ := netip.AddrFromSlice(bytes)
		return a
	}
	return fmt.Sprintf("%s-%s to %s-%s", e.address(), address(e.end[:n]), address(e.key[n:2*n]), address(e.end[n:2*n]))
}

// everywhere returns the element for the host port on every address, given a mapping of it.
func (e *element) everywhere() element {
	if e.set == e.set.table.hostPorts {
		return *e
	}
	n := int(e.set.table.addrLen)
	all := element{set: e.set.table.hostPorts, owner: e.owner}
	copy(all.key[:all.set.keyLen], e.key[n:])
	return all
}

// linkName returns the name of a link as a key of a set has it.
func linkName(name string) []byte {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return key
}

func (e *element) link() string { return strings.TrimRight(string(e.key[:unix.IFNAMSIZ]), "\x00") }

// mapping returns the mapping of an element of the maps of host ports.
func (e *element) mapping() Mapping {
	var m Mapping
	rest := e.key[:]
	n := int(e.set.table.addrLen)
	if e.set == e.set.table.hostIPPorts {
		m.HostIP, rest = e.address(), e.key[n:]
	}
	m.Protocol, m.HostPort = rest[0], binary.BigEndian.Uint16(rest[4:])
	to, _ := netip.AddrFromSlice(e.value.data[:n])
	m.To = netip.AddrPortFrom(to, binary.BigEndian.Uint16(e.value.data[n:]))
	return m
}
