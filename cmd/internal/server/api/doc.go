// Package api serves allocnetd's HTTP interface on a Unix socket: the operations of a
// configurator, sandboxes, the active configuration, events, and the requests of the CNI
// plugin. GET /openapi.json describes it.
//
// # Permissions
//
// Each connection is authorised once, by the peer credentials that the kernel reports:
// root and the members of the groups in the Options are allowed. All others get 403 and
// their connection is closed; a connection that is not a Unix socket is closed as well.
// Only root gets the configurations of networks in the records of allocations.
//
// # Bounds
//
// A request is read completely, with a bounded size and within a bounded time, before
// its operation begins. Operations then enter an admission limiter (see [Limits]); reads
// have a limiter of their own, so they never wait for operations. An operation leaves
// the limiter before its answer is written. So a client that does not read its answer
// holds only its connection and the answer, until the write deadline. The total size of
// large answers is bounded as well.
//
// Bodies are strict JSON, see package strict. Their Content-Type is application/json, or missing, or
// what curl -d sends by default; others are refused. So is a condition such as If-Match.
//
// The context of an operation ends when its client disconnects, or at the deadline that
// the client sent. The configurator then undoes what the operation has begun, including a
// Setup that has just succeeded. Operations that have ended by then keep their effects,
// although the answer is not delivered. A client that shuts down its writing side counts
// as disconnected. A client that sends its next request early does not.
package api
