// Package cleanup finds and removes what one allocation left on the host when the DEL of its plugins could not:
// links, iptables and nftables rules (those of macspoofchk as well), leases, connection tracking entries, the tuning
// plugin's backups and cached results of the CNI reference plugins, of any version and backend.
//
// # Basics
//
// [Audit] only looks. [Force] removes what Audit would find. Both work from a [Target], which is what a runtime
// remembers about the allocation; the less it remembers, the more they derive from what is there. With the network
// configurations known, only what these can have left is looked for, which costs little.
//
// # Caveats
//
// What belongs to another allocation is never touched. An object is taken for this allocation's own only if its
// name or comment holds the allocation's ID (and, when attachments are given, the name of one of their networks),
// or if it serves an address of the allocation that no other allocation holds now.
//
// What allocations share stays: bridges, the chains CNI-FORWARD, CNI-ADMIN and CNI-HOSTPORT-*, the per-bridge
// chains of the firewall plugin, and the tables and chains of the nftables backends.
package cleanup
