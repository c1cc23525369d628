package watch

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Places in a message of rtnetlink, from its beginning: in struct nlmsghdr, in struct ifinfomsg,
// and in struct rtmsg.
const (
	kindAt         = 4
	messageFlagsAt = 6

	linkFlagsAt   = unix.SizeofNlMsghdr + 8
	linkChangedAt = linkFlagsAt + 4 // the flags that have changed

	familyAt         = unix.SizeofNlMsghdr
	prefixAt         = unix.SizeofNlMsghdr + 1
	messageProtocol  = unix.SizeofNlMsghdr + routeProtocolAt
	messageRouteType = unix.SizeofNlMsghdr + routeTypeAt
)

// linkFilter keeps, in the kernel, deletions of links, of addresses and of routes that packets
// may be forwarded or rejected by, replacements of routes, the route with which IPv6 begins on a
// link, links that were brought down, and forwarding that was disabled.
func linkFilter() []unix.SockFilter {
	const (
		// A message that a sysctl has changed has a second attribute, which is that sysctl. One
		// that a link was made has more.
		sysctlAt     = unix.SizeofNlMsghdr + forwardingAt
		sysctlLength = sysctlAt + 8
	)
	kind := func(k uint16) condition { return is16(kindAt, k) }
	up := uint32(0) // the byte with IFF_UP of a number of 32 bits
	if swapped16(1) == 1 {
		up = 3
	}
	return keep(
		rule{kind(unix.RTM_DELLINK)},
		rule{kind(unix.RTM_DELADDR)},
		rule{kind(unix.RTM_DELROUTE), is8(messageRouteType, unix.RTN_UNICAST)},
		rule{kind(unix.RTM_DELROUTE), {load8, messageRouteType, atLeast, unix.RTN_BLACKHOLE, true}},
		rule{kind(unix.RTM_NEWROUTE), {load16, messageFlagsAt, hasBit, swapped16(unix.NLM_F_REPLACE), true}},
		rule{kind(unix.RTM_NEWROUTE), is8(familyAt, unix.AF_INET6), is8(prefixAt, linkLocalBits), is8(messageProtocol, unix.RTPROT_KERNEL)},
		rule{
			kind(unix.RTM_NEWLINK),
			{load8, linkFlagsAt + up, hasBit, unix.IFF_UP, false},
			{load32, linkChangedAt, equal, ^uint32(0), false}, // that would be a new link
			{load8, linkChangedAt + up, hasBit, unix.IFF_UP, true},
		},
		rule{kind(unix.RTM_NEWNETCONF), is32(0, sysctlLength), is16(sysctlAt+2, netconfForwarding), is32(sysctlAt+4, 0)},
	)
}

// rule keeps the messages that fulfil all of its conditions.
type rule []condition

// condition loads a number of a message, and compares it with another one. The result must be
// want. A message that is too short for a number that is loaded is not kept.
type condition struct {
	load    uint16
	at      uint32
	compare uint16
	with    uint32
	want    bool
}

// The instructions of linux/filter.h.
const (
	load8   = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	load16  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	load32  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	atLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	hasBit  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	answer  = unix.BPF_RET | unix.BPF_K
)

func is8(at, n uint32) condition         { return condition{load8, at, equal, n, true} }
func is16(at uint32, n uint16) condition { return condition{load16, at, equal, swapped16(n), true} }
func is32(at, n uint32) condition        { return condition{load32, at, equal, swapped32(n), true} }

// keep returns a filter that keeps the messages of any of the rules.
func keep(rules ...rule) []unix.SockFilter {
	var program []unix.SockFilter
	for _, r := range rules {
		for i, c := range r {
			compare := unix.SockFilter{Code: c.compare, K: c.with}
			toNextRule := uint8(2*(len(r)-1-i) + 1) // the rule's other conditions, and its answer
			if c.want {
				compare.Jf = toNextRule
			} else {
				compare.Jt = toNextRule
			}
			program = append(program, unix.SockFilter{Code: c.load, K: c.at}, compare)
		}
		program = append(program, unix.SockFilter{Code: answer, K: ^uint32(0)})
	}
	return append(program, unix.SockFilter{Code: answer, K: 0})
}

// swapped16 returns a number of the host's byte order as a filter loads it: in network byte order.
func swapped16(n uint16) uint32 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], n)
	return uint32(binary.BigEndian.Uint16(b[:]))
}

// swapped32 is swapped16 for 32 bits.
func swapped32(n uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return binary.BigEndian.Uint32(b[:])
}
