// Package netfilter reads the rules of nftables and of both kinds of iptables from the
// kernel. It runs no program, so it also works if the program that made the rules is
// not installed or cannot list them.
package netfilter
