package rtnl

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// Counters are the counters of a link since it was made, as the host's end of a veth
// counts them: what the sandbox sends is received here.
type Counters struct {
	RxPackets, TxPackets uint64
	RxBytes, TxBytes     uint64
	RxDropped, TxDropped uint64
}

// statsHeader is the size of struct if_stats_msg of linux/if_link.h.
const statsHeader = 12

// Statistics returns the counters of all links of the host by index. The kernel answers
// with the counters alone: it does not look for the names of the links, nor for the
// namespaces of their peers.
func (h *Host) Statistics() (map[int]Counters, error) {
	var all map[int]Counters
	_, err := retry.List(func() ([]struct{}, error) {
		all = map[int]Counters{}
		return nil, dump(&h.conns, func(r *sock.Requests) {
			var m [statsHeader]byte
			binary.NativeEndian.PutUint32(m[8:], 1<<(unix.IFLA_STATS_LINK_64-1))
			r.Begin("", unix.RTM_GETSTATS, unix.NLM_F_DUMP)
			r.Append(m[:]...)
		}, func(payload []byte) error {
			if index, c, ok := parseCounters(payload); ok {
				all[index] = c
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the statistics of links: %w", err)
	}
	return all, nil
}

// parseCounters reads an answer; ok is false if it has no counters.
func parseCounters(payload []byte) (index int, c Counters, ok bool) {
	index = indexOf(payload)
	sock.EachAttribute(sock.After(statsHeader, payload), func(kind uint16, value []byte) {
		const fields = 8
		if kind != unix.IFLA_STATS_LINK_64 || len(value) < 8*fields {
			return
		}
		field := func(i int) uint64 { return binary.NativeEndian.Uint64(value[8*i:]) }
		// The order is that of struct rtnl_link_stats64.
		c = Counters{
			RxPackets: field(0), TxPackets: field(1), RxBytes: field(2), TxBytes: field(3),
			RxDropped: field(6), TxDropped: field(7),
		}
		ok = true
	})
	return index, c, ok
}

// OwnerOf returns the owner of a link of the host; ok is false if it has none, or if
// there is no such link any more.
func (h *Host) OwnerOf(index int) (owner names.Owner, ok bool, err error) {
	err = get(&h.conns, func(r *sock.Requests) { linkInquiry(r, index) }, func(answer []byte) {
		_, alias := readNames(answer)
		owner, ok = names.ParseOwner(alias)
	})
	if err != nil && !IsNotFound(err) {
		return names.Owner{}, false, fmt.Errorf("find link %d: %w", index, err)
	}
	return owner, ok, nil
}
