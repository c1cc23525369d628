// Package names builds and parses the names that allocnet gives to objects in the
// kernel. It also validates names from configurations and requests.
package names

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// Table is the name of allocnet's nftables table, one in each of the families ip, ip6 and
// bridge.
const Table = "allocnet"

// GuardTable is the table that protects the host's loopback addresses from
// other hosts, and the host from packets with another's source address.
const GuardTable = "allocnet_guard"

// HeldGuardTable is the name of a second table with the rules of GuardTable. A
// long-lived process owns it until the process ends, so that a flush of the ruleset
// does not remove the rules. In family bridge, its rules drop the frames of guarded ports
// that the rules of Table have not checked.
const HeldGuardTable = "allocnet_guard_held"

// PolicyTable is the name of the tables with the network policies of allocations.
const PolicyTable = "allocnet_policy"

// PolicedTable is the name of the table with the addresses of allocations on bridges that need a policy of PolicyTable.
const PolicedTable = "allocnet_policed"

// IsOwnTable reports whether a table of nftables with that name is allocnet's.
func IsOwnTable(name string) bool {
	switch name {
	case Table, GuardTable, HeldGuardTable, PolicyTable, PolicedTable:
		return true
	}
	return false
}

// Owner is the attachment to which an object in the kernel belongs. Instance
// distinguishes users of allocnet on one host that have separate records: see package
// statedir. It is "" for the default directory and for plugin binaries, which have no
// directory.
type Owner struct{ Network, ID, IfName, Instance string }

// DefaultStateDir is the default directory of the records.
const DefaultStateDir = "/run/allocnet"

const (
	ownerPrefix = "allocnet:"
	// maxOwner is the maximum length of an element's comment that nft shows. The alias
	// of an interface may be longer.
	maxOwner = 127
)

// String returns the owner in the form of interface aliases and nftables comments:
// allocnet:NETWORK/ID/IFNAME, followed by :INSTANCE if the owner has one. If the text
// would be too long, long parts are replaced by # and a hash, so that equal owners have
// equal texts.
func (o Owner) String() string {
	instance := ""
	if o.Instance != "" {
		instance = ":" + o.Instance
	}
	if s := ownerPrefix + o.Network + "/" + o.ID + "/" + o.IfName + instance; len(s) <= maxOwner {
		return s
	}
	return ownerPrefix + short(o.Network) + "/" + short(o.ID) + "/" + o.IfName + instance
}

// short returns the hash of a part of an owner that is long. CNI allows no # in names.
func short(part string) string {
	const most = 50
	if len(part) <= most {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	return "#" + hex.EncodeToString(sum[:16])
}

// IsHash reports whether a part of a parsed owner is a hash.
func IsHash(part string) bool { return strings.HasPrefix(part, "#") }

// ParseOwner parses the text that String returns. Hashed parts stay hashes; compare
// them with OfNetwork and OfID.
func ParseOwner(s string) (Owner, bool) {
	rest, ok := strings.CutPrefix(s, ownerPrefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return Owner{}, false
	}
	// No interface has a colon in its name.
	ifName, instance, _ := strings.Cut(parts[2], ":")
	return Owner{Network: parts[0], ID: parts[1], IfName: ifName, Instance: instance}, true
}

// OfNetwork reports whether a parsed owner belongs to a network.
func (o Owner) OfNetwork(network string) bool {
	return o.Network == network || o.Network == short(network)
}

// OfID reports whether a parsed owner belongs to a container.
func (o Owner) OfID(id string) bool { return o.ID == id || o.ID == short(id) }

var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// VethPrefix begins the name of the host's end of every veth, also those of the reference plugins. Network managers
// ignore such links.
const VethPrefix = "veth"

// Veth returns the name of the host's end of the owner's veth: 55 bits of a hash after
// a prefix.
func (o Owner) Veth() string {
	sum := sha256.Sum256([]byte(o.Network + "/" + o.ID + "/" + o.IfName + ":" + o.Instance))
	return VethPrefix + lower.EncodeToString(sum[:7])[:11]
}

// IfbPrefix begins the name of every ifb of the bandwidth plugin.
const IfbPrefix = "bwp"

// Ifb returns the name of the ifb through which the bandwidth plugin shapes what a container
// sends. It is the reference plugin's: all interfaces of a container on one network share it.
func Ifb(network, container string) string {
	const length = 15 // the longest name of a link
	sum := sha512.Sum512([]byte(network + container))
	return (IfbPrefix + hex.EncodeToString(sum[:]))[:length]
}
