// Package cni runs the commands of the CNI plugin "allocnet" on a configurator: in the
// daemon, or in the process of the plugin if the daemon is not running. Both do the
// same work on the same records. It also holds the protocol between the plugin and the
// daemon, see [Request].
//
// # The configuration
//
// A configuration of type "allocnet" hands the work on to networks of the host:
//
//	{"type": "allocnet", "delegate": "NAME"}
//	{"type": "allocnet", "delegates": ["NAME", "NAME"]}
//	{"type": "allocnet", "plugins": [{"type": "bridge", ...}, ...]}
//	{"type": "allocnet"}
//
// by their names, or as a chain of plugins of its own; the last form takes the
// networks that the host attaches to where nobody names one. The first network is
// the primary one: it gets the interface that the runtime named, goes on from the
// prevResult, if there is one, and has the host ports, addresses and MAC that were
// asked for. The others get eth1, eth2 and so on, or eth0 where that is taken. The
// result is that of all, one after the other.
//
// "args" is handed on to the plugins of a chain; networks that are named cannot be
// given any. "socket", "idleTimeout" and "settings" are read by the program
// allocnet-cni. Any other key is an error that names it, unless it begins with
// "cni.dev/", which the specification has for itself. In "runtimeConfig" the case of
// names does not matter: go-cni has its own.
//
// # Allocations
//
// An attachment, which is a container and an interface, is one allocation. Its scope
// is the network of the runtime's configuration: what else is on the host, of other
// networks or none, is not touched by DEL and GC. A configuration whose name may change
// while there are attachments has a "scope" instead, which must not. A DEL by another
// name is that of the same attachment where the container, the interface and the network
// namespace, as far as there is one, are the same; else it is refused.
//
// # Errors
//
// An error of a plugin is returned as it is, but for JSON that it quotes, of which some
// may be from the configuration.
package cni
