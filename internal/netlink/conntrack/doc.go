// Package conntrack deletes entries of the kernel's connection tracking: those
// of a host port that changes hands, and those of an address that is gone. A
// client that goes on sending from the same UDP port would otherwise be led to
// where its first packet went.
//
// The table is one for all namespaces, and what costs time is the walk through
// it. A namespace without entries is not walked for; one with few is looked at as
// text, which walks without locks, and most often has nothing to delete. Where
// the kernel deletes by a filter (since Linux 6.12) it does so in that one walk;
// elsewhere the entries are listed, as few as the kernel can be asked for,
// compared here, and deleted one by one.
//
// The kernel's filter is not to be trusted with everything. It compares IPv6
// addresses the wrong way round, so that it matches all entries but those asked
// for, and knows no ports but those of TCP and UDP. See filter.exact.
package conntrack
