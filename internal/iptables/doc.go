// Package iptables is everything that allocnet does with the programs iptables
// and nft.
//
// # Basics
//
// [AcceptRule] makes the forward-accept rule, once per host and family. An accept
// in a table of nftables does not help where the filter table of iptables drops
// what it forwards (Docker, hardened hosts). So allocnet's tables mark the packets
// that they approve, and a rule that iptables itself lists accepts the mark:
//
//	-A FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD
//	-A ALLOCNET-FORWARD -j CNI-ADMIN
//	-A ALLOCNET-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT
//
// The tables clear the mark from packets that arrive with it, so the rule accepts
// only what they decide. Rules of the legacy iptables outlive those tables after
// nft flush ruleset. There one more rule, in the table mangle, clears the mark:
//
//	-A FORWARD -m comment --comment allocnet -m mark --mark 0x1000/0x1000 -j MARK --set-xmark 0x0/0x1000
//
// The admin chains belong to the operators: they decide first.
//
// [AllowPublished] accepts packets to published ports for the exec engine, whose
// firewall plugin accepts only answers. [Open] is the program iptables and [Parse]
// reads its listings, for the layouts of the reference plugins; [NFTable] is the
// same for the program nft.
//
// # The cache
//
// Running iptables takes longer than everything else in an ADD. What was seen is
// kept in one place, cache.go: the version of the programs, and which
// forward-accept rules were complete. An entry is valid while the kernel, which is
// asked directly, shows the same rules (snapshot.go).
//
// # Caveats
//
// The forward-accept rule is made with the program that is called iptables. Rules
// of its other variant (nf_tables or legacy) are in tables that it does not see.
package iptables
