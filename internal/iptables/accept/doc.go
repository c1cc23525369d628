// Package accept lets what allocnet's own nftables rules have approved pass the
// filter table of iptables, where a policy of DROP (Docker, hardened hosts) would
// decide otherwise: an accept in another table does not help there.
//
// The opening is one chain in each family, in a form that iptables itself lists,
// and is made once per host, not per allocation:
//
//	-A FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD
//	-A ALLOCNET-FORWARD -j CNI-ADMIN
//	-A ALLOCNET-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT
//
// The mark is set and cleared by allocnet's own tables, around the filter table.
// They also clear it from packets that come with it, so that only what they decide
// opens. Rules of the legacy iptables outlive those tables where all of nftables is
// flushed; there one more rule, in the table mangle, clears it as well:
//
//	-A FORWARD -m comment --comment allocnet -m mark --mark 0x1000/0x1000 -j MARK --set-xmark 0x0/0x1000
//
// The admin chains are the operators': what they decide comes first.
//
// # Caveats
//
// The opening is made with the program that is called iptables. Rules of its
// other variant (nf_tables or legacy) stand in tables that it does not see.
package accept
