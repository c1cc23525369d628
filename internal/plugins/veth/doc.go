// Package veth is what the bridge and the ptp plugin have in common: a link of
// which one end is the host's and the other the sandbox's, with addresses and
// routes from an IPAM plugin, and masquerading.
package veth
