// Package cleanup finds and removes the objects of one allocation that the DEL of its
// plugins could not remove: links, iptables and nftables rules (including those of
// macspoofchk), leases, connection tracking entries, backups of the tuning plugin and
// cached results of libcni. It supports all versions and backends of the CNI reference
// plugins.
//
// # Basics
//
// [Audit] only examines the host. [Force] removes the objects that Audit would find.
// Both use a [Target], which describes the allocation. Missing fields of the Target are
// derived from objects on the host. If the network configurations are known, only
// objects that these networks can have left are searched, which is fast.
//
// # Caveats
//
// Objects of other allocations are never touched. An object belongs to the allocation
// only if its name or comment contains the ID (and the name of one of the attached
// networks, if attachments are given), or if it contains an address of the allocation
// that no other allocation holds now.
//
// Shared objects are kept: bridges, the chains CNI-FORWARD, CNI-ADMIN and
// CNI-HOSTPORT-*, the per-bridge chains of the firewall plugin, and the tables and
// chains of the nftables backends.
package cleanup
