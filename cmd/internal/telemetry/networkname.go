package telemetry

import "sync"

// maxNetworks bounds the number of networks with a label of their own. Allocations may
// bring their own networks, so the number of names is not bounded.
const maxNetworks = 100

// otherNetwork is the label of all further networks. No network can have that name.
const otherNetwork = "(other)"

// networkNames are the networks that have a label of their own.
type networkNames struct {
	mu    sync.Mutex
	known map[string]bool
}

// label returns the label of a network.
func (n *networkNames) label(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.known[name]:
		return name
	case len(n.known) >= maxNetworks:
		return otherNetwork
	case n.known == nil:
		n.known = map[string]bool{}
	}
	n.known[name] = true
	return name
}
