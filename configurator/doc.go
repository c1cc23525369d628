// Package configurator sets up container networks through CNI, and removes them again:
// interfaces, addresses, routes, published host ports, masquerading and firewall rules.
// It is a library for workload schedulers and container runtimes.
//
// # Basics
//
// An [Allocation] is one network namespace and the network that is requested for it.
// [Configurator.Setup] attaches it to its networks and returns a [Status].
// [Configurator.Check] reports whether the network is still as Setup left it.
// [Configurator.Teardown] removes the network. [Configurator.GC] removes the networks of
// all allocations that are not live any more.
//
// Networks are CNI configuration lists in a directory, selected by name. Setup runs the
// plugins of a list: the native plugins of this library in the process, all others as
// binaries of the host. The network "allocnet" is built in and needs no file. The name ""
// means the host's default network.
//
// These four operations are idempotent. The Configurator writes a record before and after
// each change. If the process crashes, Teardown or GC removes everything by the record,
// from the same or from another process.
//
// # Caveats
//
// The process needs CAP_NET_ADMIN and CAP_SYS_ADMIN in the user namespace that owns its
// network namespace.
//
// The network namespace of an allocation must exist before Setup, and Teardown does not
// destroy it; package sandbox creates and destroys namespaces. With Allocation.OwnNetns,
// Setup creates the namespace and Teardown destroys it.
//
// Plugin binaries run with the environment of the calling process. The reference plugins
// run iptables, which must be in PATH.
//
// While a plugin binary runs, go-cni keeps results in the directory libcni.CacheDir, by
// default /var/lib/cni, which must be writable. It is empty between operations. A program
// that does not use libcni itself may set libcni.CacheDir to a directory below its state
// directory before it calls New.
package configurator
