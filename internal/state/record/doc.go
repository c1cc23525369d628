// Package record stores one record per allocation: everything that DEL needs, and
// what ADD returned. A record is a file in a directory on tmpfs. Its first line is
// the record as JSON, for example before an ADD. The outcome of the ADD is an
// appended line, which counts once it is complete. A whole record is written to a
// draft, which is renamed. So after a crash of the process at any instant, the
// file contains the old record or the new one. Nothing is synced to a disk,
// because the network that records describe does not outlive the kernel.
//
// # Reservations
//
// Only one allocation at a time may have a host port, a network namespace, or an
// interface of a container, whose ID and name are the owner of objects in the kernel. An
// index next to the records finds the allocation that has one without reading all
// records:
//
//	claims/port-8080/ID   a symbolic link to "tcp/,udp/192.0.2.1": what ID reserved of that port
//	claims/ports-7/ID     to "=8000-8191": of an allocation with many ports, those of the 7th 1024
//	claims/netns-HASH/ID  of the path of its network namespace
//	claims/container-C/ID of the container C if that is not the ID
//	claims/complete-3     the index has every record of this state directory
//
// The records are authoritative; the index only selects those to read. An
// allocation adds its reservations to the index before it writes its record, and
// removes them after it deletes the record. So a crash can leave stale
// reservations, but never a record without its reservations. Stale reservations
// are removed on the next conflict, and by [Store.Sweep]. If the index is not
// complete, because it was deleted or the records are older, it is rebuilt from
// the records.
//
// [Store.Reserve] holds a lock for all allocations while it looks for conflicts
// and writes. All other operations change only the reservations of their own
// allocation and need only the lock of that allocation.
package record
