package cleanup

import "net/netip"

// addresses records which allocation holds which address. Plugins leave objects that
// contain only an address; these may be removed only if no other allocation holds the
// address.
type addresses struct {
	own        map[netip.Addr]string // address of the allocation -> network
	foreign    map[netip.Addr]bool   // held by another allocation
	incomplete bool                  // not all holders could be determined
}

// addOwn records that the allocation has or had an address in a network.
func (a *addresses) addOwn(addr netip.Addr, network string) {
	if !isHost(addr) {
		return
	}
	if a.own == nil {
		a.own = make(map[netip.Addr]string)
	}
	if a.own[addr] == "" {
		a.own[addr] = network
	}
}

// addForeign records that another allocation holds an address.
func (a *addresses) addForeign(addr netip.Addr) {
	if !addr.IsValid() {
		return
	}
	if a.foreign == nil {
		a.foreign = make(map[netip.Addr]bool)
	}
	a.foreign[addr] = true
}

// isOurs reports whether objects that contain an address may be removed.
func (a *addresses) isOurs(addr netip.Addr) bool {
	_, own := a.own[addr]
	return own && !a.foreign[addr] && !a.incomplete
}

// isHost reports whether an allocation can have an address.
func isHost(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast()
}
