// Package sock is the netlink socket of all packages that talk to the kernel, with a
// builder for requests and a reader for attributes. The packages that use it contain
// the messages of their protocol, and no socket code.
//
// The kernel processes requests during the send call: when it returns, the answers can
// be read. Therefore a socket never waits for an answer and is not registered with Go's
// poller. Waking a thread for each answer would take longer than most requests.
//
// Opening and closing a socket per request costs more than the request. In addition,
// closing an nf_tables socket waits until the kernel has destroyed the objects that
// earlier transactions removed. Pool and Lend keep sockets open.
package sock
