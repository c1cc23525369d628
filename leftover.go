package allocnet

import (
	"fmt"
	"strings"
)

// Kind is the kind of object that a leftover is.
type Kind string

// The kinds of leftovers.
const (
	KindLink            Kind = "link"
	KindIPTablesRule    Kind = "iptables-rule"
	KindIPTablesChain   Kind = "iptables-chain" // with the rules in it
	KindNFTablesRule    Kind = "nftables-rule"
	KindNFTablesChain   Kind = "nftables-chain"   // with the rules in it
	KindNFTablesElement Kind = "nftables-element" // in allocnet's tables
	KindFirewalldSource Kind = "firewalld-source" // an address in a firewalld zone
	KindRoute           Kind = "route"            // in a routing table, made by the plugin routes
	KindLease           Kind = "lease"
	KindConntrack       Kind = "conntrack" // all entries of one protocol for one address
	KindCache           Kind = "cache"     // a cached result of libcni
	KindBackup          Kind = "backup"    // attributes of an interface, saved by the tuning plugin
)

// Leftover is an object on the host that belongs to an allocation and that its
// teardown did not remove.
type Leftover struct {
	Kind Kind `json:"kind"`
	// Network is the name of the network, "" if it is not known.
	Network string `json:"network,omitempty"`
	// Where locates the object: family, table and chain, or a directory.
	Where string `json:"where,omitempty"`
	// Object is the text of a rule, or the name of a chain, link or file.
	Object string `json:"object"`
}

// String returns a description of the leftover in one line.
func (l Leftover) String() string {
	parts := []string{string(l.Kind)}
	if l.Where != "" {
		parts = append(parts, l.Where)
	}
	parts = append(parts, l.Object)
	if l.Network != "" {
		parts = append(parts, fmt.Sprintf("(network %q)", l.Network))
	}
	return strings.Join(parts, " ")
}
