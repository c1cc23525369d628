// Package veth is the common part of the bridge and the ptp plugin: a veth with
// one end on the host and the other in the container, addresses and routes from
// an IPAM plugin, masquerading, and the removal, check and repair of their rules.
package veth
