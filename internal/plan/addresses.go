package plan

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/record"
)

// RequestedAddresses returns the addresses that a record requests in the conventions of CNI, where
// they can be read.
func RequestedAddresses(r *record.Record) (addresses []netip.Addr) {
	var texts []string
	if json.Unmarshal(r.Capabilities[IPs], &texts) != nil {
		texts = nil // a value of Allocation.Capabilities that is no list
	}
	for _, arg := range r.Args {
		if arg[0] == "IP" {
			texts = append(texts, arg[1])
		}
	}
	for _, text := range texts {
		address, _, _ := strings.Cut(text, "/")
		if ip, err := netip.ParseAddr(address); err == nil {
			addresses = append(addresses, ip.Unmap())
		}
	}
	return addresses
}

// HasAddress reports whether a record has one of the addresses in a network of the other one.
func HasAddress(r, other *record.Record, wanted []netip.Addr) bool {
	for _, a := range r.Attachments {
		if !slices.ContainsFunc(other.Attachments, func(o record.Attachment) bool { return o.Network == a.Network }) {
			continue
		}
		result, err := engine.ParseResult(a.Result)
		if err != nil {
			continue
		}
		for _, ip := range result.IPs {
			if address, ok := netip.AddrFromSlice(ip.Address.IP); ok && slices.Contains(wanted, address.Unmap()) {
				return true
			}
		}
	}
	return false
}
