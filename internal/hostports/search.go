package hostports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
	"github.com/allocnet/allocnet/portmap"
	"github.com/hashicorp/go-hclog"
)

// MaxListeners bounds the number of listeners that are reported for one allocation.
const MaxListeners = 16

// Checker looks at the host ports of allocations for a configurator.
type Checker struct {
	Ignore bool // no processes that listen
	Logger hclog.Logger
	// First reports whether a text has not been logged yet.
	First func(text string) bool
}

// Search is a search for processes that listen on host ports. A nil Search has found none. found and
// err are valid once done is closed.
type Search struct {
	mappings []portmap.Mapping
	done     chan struct{}
	found    []sockdiag.Listener
	err      error
}

// Search starts a search for processes of the host that listen on host ports. What the runtime of a
// container listens on to reserve its ports does not count. The search runs concurrently with ADD or
// CHECK. Search returns nil if there are none, or nothing to search for.
func (c Checker) Search(ports []portmap.Mapping, container string) *Search {
	if len(ports) == 0 || c.Ignore {
		return nil
	}
	if unused, _ := Unused(ports); unused { // Look returns the error
		return nil
	}
	s := &Search{mappings: ports, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.found, s.err = Look(s.mappings)
		s.found = Others(s.found, container)
	}()
	return s
}

// wait waits for the end of the search or of the context: /proc may not answer about a process.
func (s *Search) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Errors waits for the search and returns a *allocnet.ListenerError for each listener, up to
// MaxListeners.
func (s *Search) Errors(ctx context.Context, id string) error {
	if s == nil {
		return nil
	}
	if err := s.wait(ctx); err != nil {
		return fmt.Errorf("look for processes that listen on the host ports of allocation %q: %w", id, err)
	}
	return listenerErrors(id, Among(s.found, s.mappings, true, true))
}

// Warnings logs what the caller should know about host ports that were published for an allocation
// with a Status, and returns the texts for Status.Warnings.
func (c Checker) Warnings(ctx context.Context, ports []portmap.Mapping, s *Search, id string, status *allocnet.Status) []string {
	return append(c.addressWarnings(ports, id, status), c.listenerWarnings(ctx, s, id, status)...)
}

// listenerWarnings waits for the search, logs the listeners and returns the texts for
// Status.Warnings.
func (c Checker) listenerWarnings(ctx context.Context, s *Search, id string, status *allocnet.Status) (texts []string) {
	if s == nil {
		return nil
	}
	if err := s.wait(ctx); err != nil {
		if c.First(err.Error()) {
			c.Logger.Warn("cannot look for processes that listen on host ports", "error", err)
		}
		return nil
	}
	ipv4, ipv6 := families(status)
	list := Among(s.found, s.mappings, ipv4, ipv6)
	for i, l := range list {
		if i == MaxListeners {
			texts = append(texts, fmt.Sprintf("processes of the host listen on %d more published ports", len(list)-i))
			break
		}
		port, address, uid := l.Mapping.Published(), l.Listener.Address.String(), l.Listener.UID
		texts = append(texts, fmt.Sprintf("host port %s: a process of the host (user %d) listens on %s; packets to the host port go to the allocation",
			port, uid, address))
		c.Logger.Warn("a process of the host listens on a published host port; packets to the port now go to the allocation",
			"alloc", id, "port", port, "listens", address, "uid", uid)
	}
	return texts
}

// listenerErrors returns a *allocnet.ListenerError for each listener, up to MaxListeners.
func listenerErrors(id string, list []Port) error {
	more := len(list) - MaxListeners
	list = list[:min(len(list), MaxListeners)]
	inodes := make([]uint32, len(list))
	for i, l := range list {
		inodes[i] = l.Listener.Inode
	}
	var errs []error
	if len(list) > 0 {
		processes := sockdiag.Processes(inodes...)
		for _, l := range list {
			p := processes[l.Listener.Inode]
			errs = append(errs, &allocnet.ListenerError{
				ID: id, Mapping: l.Mapping, Address: l.Listener.Address.String(), UID: l.Listener.UID, PID: p.PID, Process: p.Name,
			})
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("publish host ports of allocation %q: %w: and on %d more", id, allocnet.ErrListener, more))
	}
	return errors.Join(errs...)
}

// families reports for which address families an allocation has addresses.
func families(s *allocnet.Status) (ipv4, ipv6 bool) {
	for _, i := range s.Interfaces {
		for _, a := range i.Addresses {
			if p, err := netip.ParsePrefix(a.Address); err == nil && i.Sandbox != "" {
				ipv4, ipv6 = ipv4 || p.Addr().Unmap().Is4(), ipv6 || !p.Addr().Unmap().Is4()
			}
		}
	}
	return ipv4, ipv6
}
