package ruleset

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Fragments are dropped before the kernel reassembles them. A sender that owns its frames chooses where the
// kernel writes the checksum of a packet, and the kernel writes it when it takes the reassembled packet
// apart again: behind all rules, into any field of the headers.

// beforeDefrag is a priority before the reassembly in the hook prerouting of IP (NF_IP_PRI_RAW_BEFORE_DEFRAG).
const beforeDefrag = -450

// fragments4 matches fragments of IPv4, and fragments6 packets of IPv6 with a fragment header, also those
// that are whole.
func fragments4() []expr.Any {
	const flagsAt, moreOrOffset = 6, 0x3fff
	return []expr.Any{network(flagsAt, 2, 0), mask([]byte{moreOrOffset >> 8, moreOrOffset & 0xff}, []byte{0, 0}), unequal([]byte{0, 0})}
}

func fragments6() []expr.Any { return extension(unix.IPPROTO_FRAGMENT) }

// withoutFragments returns the chain that drops fragments from links of routed networks.
func (t *table) withoutFragments() chain {
	fragments := fragments4()
	if t.family == unix.NFPROTO_IPV6 {
		fragments = fragments6()
	}
	return newChain("fragments", base("filter", unix.NF_INET_PRE_ROUTING, beforeDefrag),
		newRule("fragments from links that send none", slices.Concat(fragments,
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, inSet(t.unfragmented)}, counted(drop()))...))
}

// portFragments returns the rules that drop fragments from bridge ports. match matches the protocol.
func (t *table) portFragments(ipv4, ipv6 []expr.Any) []rule {
	of := func(match, fragments []expr.Any) rule {
		return newRule("fragments", slices.Concat(match, fragments, t.inPortSet(t.unfragmentedPorts, nil), counted(drop()))...)
	}
	return []rule{of(ipv4, fragments4()), of(ipv6, fragments6())}
}
