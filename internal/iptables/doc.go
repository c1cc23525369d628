// Package iptables contains everything that allocnet does with the programs iptables
// and nft.
//
// # Basics
//
// [AcceptRule] makes the forward-accept rule, once per host and family. A packet that
// an nftables table accepts is still dropped if the filter table of iptables drops
// forwarded packets (Docker, hardened hosts). Therefore allocnet's tables mark the
// packets that they approve, and a rule that iptables itself lists accepts the mark:
//
//	-A FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD
//	-A ALLOCNET-FORWARD -j CNI-ADMIN
//	-A ALLOCNET-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT
//
// The tables clear the mark from packets that arrive with it, so the rule accepts only
// the packets that the tables approve. After nft flush ruleset, rules of the legacy
// iptables still exist, but allocnet's tables do not. Therefore the legacy iptables
// gets one more rule, in the table mangle, which clears the mark:
//
//	-A FORWARD -m comment --comment allocnet -m mark --mark 0x1000/0x1000 -j MARK --set-xmark 0x0/0x1000
//
// The admin chains, such as CNI-ADMIN, belong to the operators and are evaluated first.
//
// [AllowPublished] accepts packets to published ports for the exec engine, whose
// firewall plugin accepts only answers. For the rule layouts of the reference plugins,
// [Open] returns a [Command], which runs iptables, and [Parse] reads its listings;
// [NFTable] does the same with the program nft.
//
// # The cache
//
// Running iptables takes longer than everything else in an ADD. Therefore cache.go
// keeps what was found: the version of the programs, and which forward-accept rules
// were complete. An entry is valid while the kernel, which is queried directly, shows
// the same rules (snapshot.go).
//
// # Caveats
//
// The forward-accept rule is made with the program named iptables. Rules of the other
// variant (nf_tables or legacy) are in tables that this program does not list.
package iptables
