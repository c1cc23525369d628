// Package ruleset maintains allocnet's nftables tables, one each of the families ip, ip6
// and bridge, with fixed chains, maps and sets. An allocation only adds and removes
// elements, so the number of rules that a packet passes does not grow with the number
// of allocations.
//
// All tables change in one transaction: the messages are built in a buffer and sent
// with one system call. The comment of an element is its owner. The comment of a rule
// ends in a digest of the rule, by which Check and Repair recognise it.
package ruleset
