// Package netfilter tells what stands in the kernel's tables of rules, over
// netlink alone. It is for what has to be known where the program that made the
// rules is not installed, or cannot list them: that nothing is there, or what is.
package netfilter
