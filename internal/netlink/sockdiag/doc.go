// Package sockdiag asks the kernel which sockets of the host listen on given ports
// (sock_diag(7), inet_diag).
package sockdiag
