// Package lease keeps who holds which address of a network, in a directory that
// the reference plugin host-local understands and may use at the same time.
//
// # Basics
//
// A lease is a file `<data directory>/<network>/<address>` that holds the
// container ID, CR LF, and the interface name. Whoever changes something holds
// flock(2) on the file `lock` beside it. `last_reserved_ip.<n>` remembers the
// address that was given out last from range set n, so that a freed address rests
// until its range has been gone through.
//
// The files say who holds an address, not which addresses somebody holds. For
// that there is an index, `<data directory>/.allocnet/<network>/<hash of the
// owner>`: symbolic links whose target is the list of addresses. A network's name
// cannot begin with a dot, so nobody else looks there.
//
// # The index can be trusted, or it is known that it cannot
//
// After each change the directory of the network gets a modification time that no
// clock shows: it is signed. The kernel itself takes the signature away with the
// first file that anybody creates or removes there, be it the reference plugin or
// we. So the order of the writes does not matter, if only the signature comes
// last: a crash between two of them leaves a directory without signature, and so
// does every change by another program. Without signature, or without the index's
// directory, the index is made anew by reading all leases once. An index that
// cannot be written is no error: the directory stays unsigned, and every operation
// reads all leases.
//
// # Caveats
//
// A program that changes leases without taking the lock may do so just before a
// signature. The index may then name a lease that is gone, which is noticed, or
// lack one that is there, which only Retain notices. The same goes for a lease that
// is written to in its place: Release and Lookup notice it where the index names the
// lease, and Release where the caller knows the address.
package lease
