// Package api is allocnetd's HTTP interface on a unix socket: the operations of a
// configurator, sandboxes, the configuration in force, events, and the way in for
// the CNI plugin. GET /openapi.json describes it.
//
// # Who may
//
// Every connection is judged once, by the credentials that the kernel has of its
// peer: root and the members of the groups of the Options. All others get 403 and
// their connection is closed; so is whatever is no unix socket. Only root is told the
// configurations of networks, in the records of allocations.
//
// # Bounds
//
// A request is read whole, with a bounded size and within a bounded time, before
// anything is done for it. Operations then pass a gate (see [Limits]); reads pass
// another one of their own, so that they never wait for operations. The gate is
// left before the answer is written, so that a client that does not read it holds
// nothing but its own connection and the answer, and that until the write deadline;
// what there may be of large answers is bounded, too.
//
// Bodies are strict JSON, see package strict; nobody looks at the Content-Type.
//
// The context of an operation ends when its client goes away, or at the deadline
// that the client named; the configurator then undoes what was begun, also a Setup
// that succeeded but for that. What is over by then stays, its answer unread. A
// client that shuts down its writing side counts as gone, one that sends the next
// request before it has its answer does not.
package api
