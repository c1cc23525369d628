// Package configurator gives network namespaces their network by CNI, and takes
// it away again: interfaces, addresses, routes, host ports, masquerading and
// firewall openings. It is made to be embedded by workload schedulers and
// container runtimes.
//
// # Basics
//
// An Allocation is one network namespace and what it asks for. Setup attaches
// it to its networks and returns a Status; Check looks whether all is still as
// Setup left it; Teardown takes all of it away; GC does so for every allocation
// that is not live any more.
//
// Networks are CNI configuration lists, found by name in a directory, and run
// with the CNI plugins of the host. The network "allocnet" is built in and
// needs no file. The name "" means the host's default network.
//
// All four operations are idempotent. Before and after each change a record is
// written, so that a crash at any instant loses nothing: whatever was begun can
// be taken away, by calling Teardown or GC, from the same or another process.
//
// # Caveats
//
// The caller needs CAP_NET_ADMIN and CAP_SYS_ADMIN, in the user namespace that
// owns its network namespace. The namespace of an allocation must exist before
// Setup, see package sandbox, and is not removed by Teardown.
//
// Plugins run with the environment of the calling process; those of the
// reference set call iptables, which must be in its PATH.
//
// While an operation runs, go-cni keeps results in the directory that the
// variable libcni.CacheDir names, /var/lib/cni by default, which must be
// writable. Between operations nothing is kept there. A program that does not
// use libcni for anything else may point the variable below its state directory
// before it calls New.
package configurator
