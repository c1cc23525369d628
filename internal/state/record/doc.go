// Package record remembers what allocnet gave to each allocation: one file per
// allocation in a directory on tmpfs. Its first line is the record as JSON, written
// to a draft that is renamed: what ADD intends, for example. What came of the ADD is
// a line that is added, and counts when it is complete. So a crash of the process at
// any instant leaves the old record or the new one. Nothing is synced to a disk: the
// network that records speak of does not outlive the kernel.
//
// # Claims
//
// A host port and a network namespace are one allocation's alone. To find who has
// them without reading all records, there is an index beside the records:
//
//	claims/port-8080/ID   a symbolic link to "tcp/,udp/192.0.2.1": what ID has of that port
//	claims/ports-7/ID     to "=8000-8191": of an allocation with many ports, those of the 7th 1024
//	claims/netns-HASH/ID  of the path of its network namespace
//	claims/complete-2     every record of this state directory is in the index
//
// The records are the truth, the index only says which of them to read: an
// allocation claims before it has a record, and gives back after it has none. So
// a crash can leave claims too many, never too few. Claims too many, of which no
// record knows, are removed when somebody else wants the same. An index that is
// not complete, because it was deleted or the records are older, is made from the
// records once.
//
// [Store.Claim] excludes all others while it looks and writes. Everything else
// touches only claims that bear its own ID and needs no lock but the
// allocation's.
package record
