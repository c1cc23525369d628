package telemetry

import "sync"

// maxNetworks bounds the networks that have a label of their own: allocations may
// bring networks along, so names can be without end.
const maxNetworks = 100

// otherNetwork stands for all further ones. No network can have that name.
const otherNetwork = "(other)"

// networkNames are those that have a label.
type networkNames struct {
	mu    sync.Mutex
	known map[string]bool
}

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
