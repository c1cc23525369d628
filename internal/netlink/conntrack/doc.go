// Package conntrack deletes entries of the kernel's connection tracking: those of
// a host port that gets another owner, and those of an address that is removed, or
// that an allocation with network policies gets. Otherwise packets of a client that
// keeps sending from the same UDP port would go to the former destination, and policies
// would not apply to connections that are older than they are.
//
// The kernel has one table for all namespaces, and walking it takes most of the
// time. The package does not walk the table for a namespace without entries. For
// few entries it reads /proc, for which the kernel takes no locks. Since Linux 6.12 the kernel can
// delete by a filter in one walk. On older kernels the package lists the entries,
// with the narrowest filter that the kernel supports, compares them, and deletes
// them one by one.
//
// The kernel's filter has defects. It inverts the comparison of IPv6 addresses, so
// that it matches all other entries, and it supports the ports of TCP and UDP only.
// See filter.exact.
package conntrack
