// Package lease records which attachment holds which address of a network. It uses
// the directory layout of the reference plugin host-local, which may work on the
// same directory at the same time.
//
// # Basics
//
// A lease is a file `<data directory>/<network>/<address>` that holds the
// container ID, CR LF, and the interface name. A writer holds flock(2) on the file
// `lock` beside it. `last_reserved_ip.<n>` has the address that was allocated last
// from range set n, so that a released address is not allocated again before the
// rest of its range.
//
// The files show the owner of an address, not the addresses of an owner. For that
// there is an index, `<data directory>/.allocnet/<network>/<hash of the owner>`:
// symbolic links whose target is the list of addresses. The name of a network
// cannot begin with a dot, so host-local does not read the index.
//
// # Validity of the index
//
// After each change, the package sets the modification time of the network's
// directory to a value that no clock produces, the signature. The kernel replaces
// that time when any program creates or removes a file in the directory. So a crash
// between two writes leaves a directory without signature, and so does a change by
// another program. Without the signature, or without the index's directory, the
// package builds the index again from all leases. If the index cannot be written,
// the directory stays unsigned, and every operation reads all leases.
//
// # Last use
//
// Neighbours may remember the MAC of an address that was released. So a file of all networks of the data directory,
// `.allocnet/.released`, has the time of the last release of each address, which Reserve returns. After a change by
// another program, the addresses of the network count as released at that moment.
//
// # Reboots
//
// A store in a boot (InBoot) stores the ID of the boot with each lease that it makes, in
// an extended attribute of the file. So a lease that another program makes for the same
// address, or the same container, does not count as one of an earlier boot. The first
// operation after a reboot moves all leases of earlier boots to
// `<data directory>/.allocnet/.former/<network>/<boot>/`, each by one rename, and then
// stores the new ID on the network's directory. Until the next reboot, the addresses there
// are held for their former owners, but host-local may lease them to others.
//
// # Caveats
//
// A program that changes leases without taking the lock may do so just before a
// signature. The index may then name a lease that is gone, which is noticed, or
// lack an existing one, which only Retain notices. The same applies to a lease file
// that a program changes in place: Release and Lookup notice it if the index names
// the lease, and Release if the caller knows the address.
package lease
