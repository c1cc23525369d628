package ruleset

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// table describes the table of one family.
type table struct {
	family byte
	name   string
	label  string // the name as nft shows it
	flags  uint32
	// addrLen is the length of an address in an IP header; source and destination
	// are the offsets of the addresses.
	addrLen, source, destination uint32

	hostPorts, hostIPPorts, standby, snatAll, snatLocal, snatNone, masqueraded, open, announced, unfragmented *set // elements with an owner
	publishedOnly                                                                                             *set // elements with an owner
	services                                                                                                  *set // addresses that host ports leave alone, which ExceptServices lists
	networks, exempt, guarded, guards                                                                         *set // elements that attachments share
	contacted, contactedPorts, contactedMissed                                                                *set // elements that packets add
	macs, addresses4, addresses6, targets, identifiers, unaddressed, tagged, policed, unfragmentedPorts       *set // of bridge ports, with an owner

	// policy has the sets of a table of policies; nil for the others.
	policy *policySets
	// needing are the sets of the addresses that need a policy, in the order of tables.
	needing [2]*set

	sets []*set
	// chains builds the chains at the first call.
	chains func() []chain
}

// set describes a set or a map.
type set struct {
	table     *table
	name      string
	label     string
	key, data []nftables.SetDatatype // data is nil for a set
	keyLen    int
	dataLen   int
	interval  bool
	// size is the maximum size of a set to which packets add elements; 0 for the
	// others.
	size uint32
	// timeout is the time in milliseconds after which such an element is removed; 0 for
	// never.
	timeout uint64
	// counters is true if each element counts the packets that matched it.
	counters bool
	// typeOf is nft's encoding of the expression that the type of the key is that of; nil
	// if the type has a name.
	typeOf []byte
	// shared is true if the elements have no owner and stay when an attachment is
	// removed.
	shared bool
	// comment names the owner of the set; "" for those that a table always has.
	comment string
	// constant are the elements that the set has from the beginning, and no others.
	constant []element
}

// The tables. They are never changed. In the order of every, several are made in one transaction: see
// reservePorts.
var (
	ip     = newTable(unix.NFPROTO_IPV4)
	ip6    = newTable(unix.NFPROTO_IPV6)
	tables = []*table{ip, ip6}
	ports  = newPortTable()
	needy  = newPolicedTable()
	every  = []*table{ip, ip6, ports, needy, policies4, policies6}
	guards = map[Family]guard{IPv4: newGuard(unix.NFPROTO_IPV4), IPv6: newGuard(unix.NFPROTO_IPV6), Bridge: {ports, newHeldPortTable()}}
)

// ownedTable is NFT_TABLE_F_OWNER: the table belongs to the socket that made it.
const ownedTable = 0x2

// tableOf returns the table for the family of an address.
func tableOf(a netip.Addr) *table {
	if a.Is4() {
		return ip
	}
	return ip6
}

// tableNamed returns a table of a family without content, and the type of its addresses.
func tableNamed(name string, family byte) (*table, nftables.SetDatatype) {
	if family == unix.NFPROTO_IPV6 {
		return &table{family: family, name: name, label: "table ip6 " + name, addrLen: 16, source: 8, destination: 24}, nftables.TypeIP6Addr
	}
	return &table{family: family, name: name, label: "table ip " + name, addrLen: 4, source: 12, destination: 16}, nftables.TypeIPAddr
}

func newTable(family byte) *table {
	t, addr := tableNamed(names.Table, family)
	proto, port, link := nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeIFName
	t.hostPorts = t.newSet("host_ports", types{proto, port}, types{addr, port})
	t.hostIPPorts = t.newSet("host_ip_ports", types{addr, proto, port}, types{addr, port})
	t.standby = t.newSet("standby_ports", types{addr, proto, port, nftables.TypeMark}, types{addr, port})
	// There are several sets instead of one map of verdicts, because with every added
	// element that jumps, the kernel validates all other elements of a map again.
	t.snatAll = t.newSet("snat_all", types{addr}, nil)
	t.snatLocal = t.newSet("snat_local", types{addr}, nil)
	t.snatNone = t.newSet("snat_none", types{addr}, nil)
	// The set is not called "masquerade" because that is a keyword: nft could not
	// read its own listing.
	t.masqueraded = t.newSet("masqueraded", types{addr}, nil)
	t.open = t.newSet("open", types{addr}, nil)
	t.publishedOnly = t.newSet("published_only", types{addr}, nil)
	mark := nftables.TypeMark // a number; no rule uses this map
	t.announced = t.newSet("announced", types{addr, mark}, types{mark, mark, mark})
	t.unfragmented = t.newSet("unfragmented", types{link}, nil)
	t.networks = t.newSet("networks", types{addr, addr}, nil)
	t.exempt = t.newSet("exempt", types{addr, addr}, nil)
	t.networks.interval, t.exempt.interval = true, true
	t.services = t.newSet("service_addresses", types{addr}, nil)
	t.guarded = t.newSet("guarded", types{link}, nil)
	t.guards = t.newSet("guards", types{link, link}, types{nftables.TypeVerdict})
	t.contacted = t.newSet("contacted", types{addr, proto, port}, nil)
	t.contactedPorts = t.newSet("contacted_ports", types{proto, port}, nil)
	t.contactedMissed = t.newSet("contacted_missed", types{proto}, nil)
	t.contacted.size, t.contactedPorts.size, t.contactedMissed.size = contactedSize, portsSize, missedSize
	for _, s := range []*set{t.networks, t.exempt, t.services, t.guarded, t.guards, t.contacted, t.contactedPorts, t.contactedMissed} {
		s.shared = true
	}
	t.chains = onceChains(t, t.trafficChains)
	return t
}

type types = []nftables.SetDatatype

func (t *table) newSet(name string, key, data types) *set {
	s := &set{table: t, name: name, label: t.label + ", set " + name, key: key, data: data}
	s.keyLen, s.dataLen = length(key), length(data)
	t.sets = append(t.sets, s)
	return s
}

// verdicts reports whether the data of a map are verdicts.
func (s *set) verdicts() bool { return len(s.data) == 1 && s.data[0].Name == nftables.TypeVerdict.Name }

// length returns the length of a concatenation in bytes. Each part fills whole
// registers of four bytes.
func length(of types) int {
	n := 0
	for _, one := range of {
		n += int(one.Bytes+3) &^ 3
	}
	return n
}

// put appends the message that makes the set. id identifies the set in the transaction.
func (s *set) put(b *sock.Requests, id uint32) {
	s.table.begin(b, s.label, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	b.CString(unix.NFTA_SET_TABLE, s.table.name)
	b.CString(unix.NFTA_SET_NAME, s.name)
	b.Uint32BE(unix.NFTA_SET_FLAGS, s.flags())
	b.Uint32BE(unix.NFTA_SET_KEY_TYPE, magic(s.key))
	b.Uint32BE(unix.NFTA_SET_KEY_LEN, uint32(s.keyLen))
	b.Uint32BE(unix.NFTA_SET_ID, id)
	if s.verdicts() {
		b.Uint32BE(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	} else if s.data != nil {
		b.Uint32BE(unix.NFTA_SET_DATA_TYPE, magic(s.data))
		b.Uint32BE(unix.NFTA_SET_DATA_LEN, uint32(s.dataLen))
	}
	if s.timeout != 0 {
		b.Attribute(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, s.timeout))
	}
	if s.counters {
		b.Attribute(unix.NLA_F_NESTED|setExpr, counterExpr())
	}
	s.describe(b)
	data := append(s.byteOrder(), s.typeOf...)
	if s.comment != "" {
		data = appendText(data, dataSetComment, s.comment)
	}
	b.Attribute(unix.NFTA_SET_USERDATA, data)
}

// flags returns the flags of the set.
func (s *set) flags() (flags uint32) {
	const concat = 0x80 // NFT_SET_CONCAT
	if s.size != 0 {
		flags |= unix.NFT_SET_EVAL
	}
	if s.interval {
		flags |= unix.NFT_SET_INTERVAL | concat
	}
	if s.data != nil {
		flags |= unix.NFT_SET_MAP
	}
	if s.timeout != 0 {
		flags |= unix.NFT_SET_TIMEOUT
	}
	return flags
}

// describe appends the size of the set, and the lengths of the fields of an interval's key.
func (s *set) describe(b *sock.Requests) {
	const (
		descConcat  = 2 // NFTA_SET_DESC_CONCAT
		fieldLength = 1 // NFTA_SET_FIELD_LEN
	)
	if s.size != 0 {
		desc := b.Nest(unix.NFTA_SET_DESC)
		b.Uint32BE(unix.NFTA_SET_DESC_SIZE, s.size)
		b.End(desc)
	}
	if s.interval {
		desc := b.Nest(unix.NFTA_SET_DESC)
		concat := b.Nest(descConcat)
		for _, field := range s.key {
			one := b.Nest(unix.NFTA_LIST_ELEM)
			b.Uint32BE(fieldLength, field.Bytes)
			b.End(one)
		}
		b.End(concat)
		b.End(desc)
	}
}

// byteOrder returns the byte order of the key in the form in which nft stores it, as a number in the
// host's byte order.
func (s *set) byteOrder() []byte {
	const (
		keyOrder     = 0 // NFTNL_UDATA_SET_KEYBYTEORDER
		hostOrder    = 1
		networkOrder = 2
	)
	order := uint32(networkOrder)
	if s.key[0].Name == nftables.TypeIFName.Name || s.key[0].Name == nftables.TypeDevGroup.Name {
		order = hostOrder
	}
	return append([]byte{keyOrder, 4}, native(order)...)
}

// remove appends the message that removes the set with its elements.
func (s *set) remove(b *sock.Requests) {
	s.table.begin(b, s.label, unix.NFT_MSG_DELSET, 0)
	b.CString(unix.NFTA_SET_TABLE, s.table.name)
	b.CString(unix.NFTA_SET_NAME, s.name)
}

// magic returns nft's number for a type.
func magic(of types) uint32 {
	t := nftables.MustConcatSetType(of...)
	return t.GetNFTMagic()
}

// setExpr is NFTA_SET_EXPR: an expression that each new element gets.
const setExpr = 17

var counterExpr = sync.OnceValue(func() []byte {
	data, err := expr.Marshal(0, &expr.Counter{})
	if err != nil {
		panic(err)
	}
	return data
})
