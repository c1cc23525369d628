// Package native is the engine that does the work of the reference plugins
// in-process, over netlink and nftables. It runs a binary only for a plugin
// that it does not know or whose configuration it does not understand.
//
// An Engine runs the chain of each network of a request (engine.go, chain.go);
// package sdk runs the single plugin. The plugins of a network, and which of them
// run as binaries, are derived from its configuration once (network.go). A
// container with several networks gets elements for their combinations
// (crossing.go).
//
// Of an allocation that is set up, the host ports (publish.go), the limits
// (limit.go) and the network policy (enforce.go) can change, and Restore repairs
// many allocations at once (restore.go). Bind completes a container of a pool for
// an allocation (bind.go).
package native
