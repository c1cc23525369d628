package configurator

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plan"
)

// The network of a slot keeps the container ID of the slot. These functions find the
// allocation that has taken it, for the case that its record is lost.

// takenSlot returns the slot whose network an allocation has taken, "" if there is none. It
// is in the note about the network namespace or, if that is lost as well, the owner of the
// links that lead into the namespace.
func (c *Configurator) takenSlot(id string) string {
	list, _ := c.store.Sandboxes(id) // the caller finds what it can
	for _, s := range list {
		if s.Container != "" {
			return s.Container
		}
	}
	return c.slotIn(filepath.Join(c.cfg.NetnsDir, id))
}

// takers returns the allocations that have taken slots, by the ID of the slot.
func (c *Configurator) takers() map[string]string {
	taker := map[string]string{}
	note := func(id string) {
		if slot := c.takenSlot(id); slot != "" && slot != id {
			taker[slot] = id
		}
	}
	entries, _ := os.ReadDir(c.cfg.NetnsDir)
	for _, e := range entries {
		if plan.ValidateID(e.Name()) == nil {
			note(e.Name())
		}
	}
	noted, _ := c.store.WithSandboxes() // GC reports the error
	for _, id := range noted {
		note(id)
	}
	return taker
}

// allocationsOfOwners returns a function from the ID that objects name as their owner to that of the
// allocation: another one if it has taken a slot.
func (c *Configurator) allocationsOfOwners() func(owner string) string {
	takers := sync.OnceValue(c.takers)
	return func(owner string) string {
		if strings.HasPrefix(owner, slotPrefix) {
			return cmp.Or(takers()[owner], owner)
		}
		return owner
	}
}

// slotIn returns the slot of this state directory whose links lead into the network namespace
// at a path; "" if there is none.
func (c *Configurator) slotIn(path string) string {
	s, err := rtnl.OpenSandbox(path)
	if err != nil {
		return ""
	}
	defer s.Close()
	handle, err := s.Handle()
	if err != nil {
		return ""
	}
	inside, _ := handle.LinkList()
	host := rtnl.OpenHost()
	defer host.Close()
	for _, link := range inside {
		peer, err := host.LinkByIndex(link.Attrs().ParentIndex)
		if err != nil || peer.Attrs().ParentIndex != link.Attrs().Index {
			continue
		}
		owner, ok := names.ParseOwner(peer.Attrs().Alias)
		if ok && owner.Instance == c.instance && strings.HasPrefix(owner.ID, slotPrefix) {
			return owner.ID
		}
	}
	return ""
}
