// Package sock is the netlink socket of all packages that speak to the kernel, with one builder of requests and one
// reader of attributes. The packages above it know the messages of their protocol and nothing of sockets.
//
// The kernel works through requests while they are sent: the answers are there when sending returns. Therefore a
// socket never waits for an answer, and Go's poller does not know it. Waking a thread for each answer takes longer than
// most requests do.
//
// To open and close a socket for each request costs more than the request, and closing one of nf_tables waits for
// the destruction of what other transactions removed. Pool and Lend keep sockets open.
package sock
