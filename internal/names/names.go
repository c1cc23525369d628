// Package names builds and parses the names that allocnet gives to objects in
// the kernel. It also validates names that come from outside.
package names

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// Table is the name of allocnet's nftables table, one in each family.
const Table = "allocnet"

// GuardTable is the table that protects the host's loopback addresses from
// other hosts.
const GuardTable = "allocnet_guard"

// HeldGuardTable is the name of the same table again, which a process owns while it
// runs.
const HeldGuardTable = "allocnet_guard_held"

// Owner is the attachment to which an object in the kernel belongs. Instance
// distinguishes the users of allocnet on one host, each with its own records:
// see package statedir. It is "" for the default directory, and for plugin
// binaries, which have no directory.
type Owner struct{ Network, ID, IfName, Instance string }

// DefaultStateDir is where records are kept.
const DefaultStateDir = "/run/allocnet"

const (
	ownerPrefix = "allocnet:"
	// maxOwner is what nft shows of an element's comment; an interface's alias
	// has room for more.
	maxOwner = 127
)

// String is the owner as interface aliases and nftables comments have it:
// allocnet:NETWORK/ID/IFNAME, and :INSTANCE where there is one. Parts that would
// be too long stand as their hash, after a #, so that owners are compared as
// text.
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

// short is a part of a long owner. CNI allows no # in names.
func short(part string) string {
	const most = 50
	if len(part) <= most {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	return "#" + hex.EncodeToString(sum[:16])
}

// IsHash reports whether a part of an owner that was read back is a hash.
func IsHash(part string) bool { return strings.HasPrefix(part, "#") }

// ParseOwner reads what String made. Long parts stay hashes: compare with Is.
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

// OfNetwork reports whether an owner that was read back is of that network.
func (o Owner) OfNetwork(network string) bool {
	return o.Network == network || o.Network == short(network)
}

// OfID reports whether an owner that was read back is of that container.
func (o Owner) OfID(id string) bool { return o.ID == id || o.ID == short(id) }

var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Veth is the name of the host's end of the owner's link: 55 bits of a hash
// behind the prefix that network managers know to leave alone.
func (o Owner) Veth() string {
	sum := sha256.Sum256([]byte(o.Network + "/" + o.ID + "/" + o.IfName + ":" + o.Instance))
	return "veth" + lower.EncodeToString(sum[:7])[:11]
}
