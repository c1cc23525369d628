// Package native is the engine that does the work of the reference plugins
// in-process, over netlink and nftables. It runs a binary only for a plugin
// that it does not know or whose configuration it does not understand.
package native
