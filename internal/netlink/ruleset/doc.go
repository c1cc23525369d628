// Package ruleset maintains allocnet's nftables tables, one each of the families ip, ip6
// and bridge, with fixed chains, maps and sets. An allocation only adds and removes
// elements, so the number of rules that a packet passes does not grow with the number
// of allocations.
//
// The tables of network policies, of the families ip and ip6, also have chains and sets
// for each Policy, which attachments share. A packet passes only the chains of the
// policies of its two ends.
//
// The elements of an attachment change in one transaction in all tables: the messages
// are built in a buffer and sent with one system call. The comment of an element is its
// owner. The comment of a rule ends in a digest of the rule, by which Check and Repair
// recognise it.
package ruleset
