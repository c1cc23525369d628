package configurator

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/subnets"
)

// hostPrefixes keeps what the host has at prefixes for a time, because a list of it grows with the number of
// interfaces.
type hostPrefixes struct {
	mu    sync.Mutex
	taken []subnets.Taken
	until time.Time
}

// list returns what the host has, and whether that was looked at just now. With again, it always is.
func (h *hostPrefixes) list(confs *conflist.Dir, created *bridges.Store, now func() time.Time, again bool) (taken []subnets.Taken, fresh bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	began := now()
	if !again && began.Before(h.until) {
		return h.taken, false, nil
	}
	networks, _ := confs.Networks() // broken files announce no routes
	if h.taken, err = subnets.OfHost(subnets.Announced(networks)); err != nil {
		h.until = time.Time{}
		return nil, true, fmt.Errorf("look at the addresses and routes of the host: %w", err)
	}
	h.taken = slices.DeleteFunc(h.taken, func(t subnets.Taken) bool { // doctor compares networks with each other
		own, err := created.Recorded(t.Link, t.Index)
		return t.Bridge && own && err == nil
	})
	end := now()
	h.until = end.Add(subnets.Pause(end.Sub(began)))
	return h.taken, true, nil
}

// lookupToUse is lookup of a network that is about to get an attachment. If it is the embedded one, its subnets are
// those of the state directory from then on.
func (c *Configurator) lookupToUse(name string) (*conflist.Network, error) {
	n, err := c.lookup(name)
	if err != nil || n.File != "" || c.kept.Load() {
		return n, err
	}
	if err := subnets.Keep(c.cfg.embedded()); err != nil {
		return nil, fmt.Errorf("keep the subnets of the embedded network: %w", &StateDirError{Dir: c.cfg.StateDir, Err: err})
	}
	c.kept.Store(true)
	return c.lookup(name)
}

// requireRoom returns a *SubnetError if the host would lose something that it has in a subnet of the
// networks.
func (c *Configurator) requireRoom(networks ...*conflist.Network) error {
	if !slices.ContainsFunc(networks, func(n *conflist.Network) bool { return len(subnets.Of(n)) > 0 }) {
		return nil
	}
	taken, fresh, err := c.prefixes.list(c.confs, c.bridges, c.now, false)
	if err != nil {
		return err
	}
	if err := subnets.RequireRoom(networks, taken); err == nil || fresh {
		return err
	}
	if taken, _, err = c.prefixes.list(c.confs, c.bridges, c.now, true); err != nil { // it may have gone
		return err
	}
	return subnets.RequireRoom(networks, taken)
}
