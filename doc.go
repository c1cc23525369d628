// Package allocnet defines the types of a library that sets up container networks
// through CNI: what an allocation requests, what it gets, the record of it, and the
// errors.
//
// An allocation is one network namespace, usually that of a container or of a group
// of tasks. A [Service] sets up, checks and removes the networks of allocations. Two
// types implement it: configurator.Configurator does the work in the calling process,
// and client.Client delegates it to the daemon allocnetd. Both use the types of this
// package and return the same errors for errors.Is and errors.As.
//
// The functions [ResolvConf], [Hosts] and [Environment] render files and environment
// variables for the processes of an allocation from its [Status].
//
// This package has few dependencies, so that a program that only uses the client does
// not link netlink and the plugins. Package configurator declares aliases of the types:
// configurator.Status is Status.
package allocnet
