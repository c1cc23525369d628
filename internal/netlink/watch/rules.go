package watch

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// transaction reads the notifications of nf_tables. Those of one transaction come in a
// row, and the last one names the process.
type transaction struct {
	changes *changes
	found   [2]string // the objects of the kinds Rules and Foreign; "" for none
	made    string    // one of allocnet's tables
}

func (t *transaction) notified(n *sock.Notification) {
	if n.Kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return
	}
	kind := int(n.Kind & 0xff)
	if kind == unix.NFT_MSG_NEWGEN {
		t.end(n)
		return
	}
	if kind >= len(actions) || actions[kind] == "" {
		return
	}
	table, object := namesIn(kind, n.Payload)
	switch {
	case isOwnTable(table):
		if kind == unix.NFT_MSG_NEWTABLE {
			t.made = describe(n, table, object)
		}
		if matters(kind, object) && !strings.HasSuffix(t.found[Rules], " "+names.Table) { // a table says more than its parts
			t.found[Rules] = actions[kind] + " " + describe(n, table, object)
		}
	case isForeign(kind, table, object):
		t.found[Foreign] = actions[kind] + " " + describe(n, table, object)
	}
}

// actions are the kinds of notifications that can matter.
var actions = [...]string{
	unix.NFT_MSG_NEWTABLE:   "change of",
	unix.NFT_MSG_DELTABLE:   "deletion of",
	unix.NFT_MSG_NEWCHAIN:   "change of",
	unix.NFT_MSG_DELCHAIN:   "deletion of",
	unix.NFT_MSG_NEWRULE:    "new rule in",
	unix.NFT_MSG_DELRULE:    "deletion of a rule in",
	unix.NFT_MSG_DELSET:     "deletion of",
	unix.NFT_MSG_DELSETELEM: "deletion of an element in",
}

// end ends a transaction.
func (t *transaction) end(n *sock.Notification) {
	found, made := t.found, t.made
	t.found, t.made = [2]string{}, ""
	if found == [2]string{} {
		return
	}
	const (
		generationPID  = 2 // NFTA_GEN_PROC_PID
		generationName = 3 // NFTA_GEN_PROC_NAME
	)
	change := Change{}
	sock.EachNetfilterAttribute(n.Payload, func(kind uint16, value []byte) {
		switch kind {
		case generationPID:
			change.PID = int(sock.Uint32BE(value))
		case generationName:
			change.Process = sock.String(value)
		}
	})
	if isAllocnet(change.Process) {
		if made != "" {
			change.Kind, change.Object = Made, "new "+made
			t.changes.add(change)
		}
		return
	}
	for kind, object := range found {
		if object != "" {
			change.Kind, change.Object = Kind(kind), object
			t.changes.add(change)
		}
	}
}

// isAllocnet reports whether a process is one of allocnet's programs. These tear down
// allocations whose records they have locked, or repair them.
func isAllocnet(process string) bool { return strings.HasPrefix(process, "allocnet") }

// namesIn reads the name of the table from a notification and, except for tables, that
// of the object itself or, for a rule or an element, of its chain or set.
func namesIn(kind int, payload []byte) (table, object string) {
	name := uint16(unix.NFTA_RULE_CHAIN) // the number is the same for sets and elements
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		name = 0
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		name = unix.NFTA_CHAIN_NAME
	}
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_TABLE_NAME: // the number is the same for all objects
			table = sock.String(value)
		case name:
			object = sock.String(value)
		}
	})
	return table, object
}

func isOwnTable(name string) bool { return names.IsOwnTable(name) && name != names.HeldGuardTable }

// matters reports whether a change of allocnet's tables can be damage. Packets add
// elements to the sets of contacted ports, and allocnet removes them.
func matters(kind int, object string) bool {
	return kind != unix.NFT_MSG_DELSETELEM || !strings.HasPrefix(object, "contacted") && object != "denied"
}

// isForeign reports whether a change of another table can concern rules for
// allocations. Programs that allocnet runs add and remove the rules of single
// attachments there all the time. Therefore only what all of them share matters.
func isForeign(kind int, table, object string) bool {
	switch table {
	case "firewalld": // a reload removes the sources of its zones
		return kind == unix.NFT_MSG_NEWTABLE || kind == unix.NFT_MSG_DELTABLE
	case "filter", "nat", "mangle", "cni_hostport", "cni_plugins_masquerade":
		switch kind {
		case unix.NFT_MSG_DELTABLE:
			return true
		case unix.NFT_MSG_DELCHAIN:
			return slices.Contains(sharedChains, object)
		case unix.NFT_MSG_DELRULE:
			return table == "filter" && (object == "FORWARD" || object == iptables.AcceptChain)
		}
	}
	return false
}

// sharedChains are the chains of allocnet and of the reference plugins' layouts that
// exist once.
var sharedChains = []string{
	iptables.AcceptChain, "FORWARD", "CNI-FORWARD", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ",
	"hostports", "hostip_hostports", "masquerading",
}

// describe returns an object as nft shows it.
func describe(n *sock.Notification, table, object string) string {
	family := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet", unix.NFPROTO_BRIDGE: "bridge"}[n.Payload[0]]
	text := "table " + family + " " + table
	switch int(n.Kind & 0xff) {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		text += ", chain " + object
	case unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM:
		text += ", set " + object
	}
	return text
}
