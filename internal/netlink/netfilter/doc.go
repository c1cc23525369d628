// Package netfilter reads the rules of nftables and of both kinds of iptables from
// the kernel. It needs no program, so it also works where the one that made the
// rules is not installed or cannot list them.
package netfilter
