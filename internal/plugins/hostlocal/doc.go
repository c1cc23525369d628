// Package hostlocal is the IPAM plugin host-local inside the process: it leases
// addresses of a network's ranges from a directory, which the reference plugin may
// use at the same time. It implements GC and STATUS as well.
package hostlocal
