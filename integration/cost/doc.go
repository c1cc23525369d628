// Package cost tests how much an operation asks of the kernel: system calls, netlink messages, nftables
// transactions, opened files, and frames that reach other ports of a bridge. These numbers do not depend on
// the machine's speed, so a change that makes an operation more expensive, or dearer the more allocations there
// are, fails a test.
//
// testdata/costs.txt has the numbers. After an intended change, write them again:
//
//	ALLOCNET_WRITE_COSTS=1 go test ./integration/cost
package cost
