package configurator

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/record"
)

// isHeld reports whether an ADD has failed because another allocation that is set up has a
// requested address: it does not become free by waiting. The address of an allocation that is
// being removed does, and so may an address whose owner has no record.
func (c *Configurator) isHeld(p *plan, addErr error) bool {
	if !errors.Is(addErr, ErrAddressUnavailable) {
		return false
	}
	wanted := requestedAddresses(p.Record)
	if len(wanted) == 0 {
		return false
	}
	records, _ := c.store.List() // of those that cannot be read, nothing is known
	return slices.ContainsFunc(records, func(r *record.Record) bool {
		return r.ID != p.ID && r.Phase == record.Ready && !r.FormerBoot && hasAddress(r, p.Record, wanted)
	})
}

// requestedAddresses returns the addresses that a record requests in the conventions of CNI, where
// they can be read.
func requestedAddresses(r *record.Record) (addresses []netip.Addr) {
	var texts []string
	if json.Unmarshal(r.Capabilities[ips], &texts) != nil {
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

// hasAddress reports whether a record has one of the addresses in a network of the other one.
func hasAddress(r, other *record.Record, wanted []netip.Addr) bool {
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
