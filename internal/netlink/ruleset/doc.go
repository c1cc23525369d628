// Package ruleset is allocnet's own nftables tables: one of family ip and one of
// family ip6, with fixed chains, maps and sets, so that an allocation only adds
// and removes elements, and a packet's way does not grow.
//
// Both tables change in one transaction: its messages are built in a buffer, go
// to the kernel with one system call, and one answer tells the outcome. Elements
// carry the text of their owner as their comment, rules a comment that ends in
// the digest of what they do, by which Check and Repair know them.
package ruleset
