// Package allocnet has the words that the packages of this library share: what
// an allocation requests, what it gets, what is recorded about it, and the errors.
// Beside them it has pure functions that make files and variables of a Status:
// [ResolvConf], [Hosts] and [Environment]. It depends on next to nothing, so that a program
// that only talks to the daemon does not link the engines.
//
// A [Service] sets up, checks and removes the networks of allocations. Two types
// implement it: a configurator.Configurator does the work in this process, and a
// client.Client has the daemon do it. Both take and return the types of this
// package, and errors.Is and errors.As find the same errors in what they return.
//
// Package configurator has the same names as aliases: configurator.Status is
// Status.
package allocnet
