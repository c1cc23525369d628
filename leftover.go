package allocnet

import (
	"fmt"
	"strings"
)

// Kind says what sort of object a leftover is.
type Kind string

// The kinds of leftovers.
const (
	KindLink            Kind = "link"
	KindIPTablesRule    Kind = "iptables-rule"
	KindIPTablesChain   Kind = "iptables-chain" // with the rules in it
	KindNFTablesRule    Kind = "nftables-rule"
	KindNFTablesChain   Kind = "nftables-chain"   // with the rules in it
	KindNFTablesElement Kind = "nftables-element" // of allocnet's own tables
	KindFirewalldSource Kind = "firewalld-source" // an address in a zone of firewalld
	KindLease           Kind = "lease"
	KindConntrack       Kind = "conntrack" // all entries of one protocol that lead to one address
	KindCache           Kind = "cache"
	KindBackup          Kind = "backup" // of an interface's attributes, by the tuning plugin
)

// Leftover is one object that an allocation left on the host.
type Leftover struct {
	Kind Kind `json:"kind"`
	// Network is the name of the network, where it is known.
	Network string `json:"network,omitempty"`
	// Where is the place: family, table and chain, or a directory.
	Where string `json:"where,omitempty"`
	// Object is a rule as text, a chain, a link or a file.
	Object string `json:"object"`
}

// String is the leftover on one line, for people.
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
