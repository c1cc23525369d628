package cleanup

import "net/netip"

// addresses gathers who holds which address. Plugins leave things that name nothing but an address; they may be
// taken away only while nobody else has it.
type addresses struct {
	own     map[netip.Addr]string // address of the allocation -> network
	foreign map[netip.Addr]bool   // held by another allocation
	unsure  bool                  // not all holders could be found out
}

// addOwn says that the allocation had an address in a network.
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

// addForeign says that another allocation holds an address.
func (a *addresses) addForeign(addr netip.Addr) {
	if !addr.IsValid() {
		return
	}
	if a.foreign == nil {
		a.foreign = make(map[netip.Addr]bool)
	}
	a.foreign[addr] = true
}

// isOurs reports whether what serves an address may be taken away.
func (a *addresses) isOurs(addr netip.Addr) bool {
	_, own := a.own[addr]
	return own && !a.foreign[addr] && !a.unsure
}

// isHost reports whether an address can be that of an allocation at all.
func isHost(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast()
}
