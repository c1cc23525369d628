// Package hostlocal is allocnet's native CNI plugin "host-local", an IPAM
// plugin. It leases addresses of a network's ranges from a directory that the
// reference plugin may use at the same time. Unlike the reference plugin, it
// implements GC and STATUS.
package hostlocal
