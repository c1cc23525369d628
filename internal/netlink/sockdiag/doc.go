// Package sockdiag lists the sockets of the host that listen on given ports
// (sock_diag(7), inet_diag).
package sockdiag
