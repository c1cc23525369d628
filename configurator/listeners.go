package configurator

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/allocnet/allocnet/internal/listeners"
	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// maxListeners bounds the number of listeners that are reported for one allocation.
const maxListeners = 16

// listenerSearch is a search for processes that listen on host ports. found and err are
// valid once done is closed.
type listenerSearch struct {
	mappings []portmap.Mapping
	done     chan struct{}
	found    []sockdiag.Listener
	err      error
}

// searchListeners starts a search for processes of the host that listen on the host
// ports of a record. What the runtime of the record's container listens on to reserve these
// ports does not count. The search runs concurrently with ADD or CHECK. searchListeners
// returns nil if there are none, or nothing to search for.
func (c *Configurator) searchListeners(r *record.Record) *listenerSearch {
	if len(r.Ports) == 0 || c.cfg.Listeners == ListenerIgnore || listeners.Unused(r.Ports) {
		return nil
	}
	l := &listenerSearch{mappings: r.Ports, done: make(chan struct{})}
	container := cmp.Or(r.ContainerID, r.ID)
	go func() {
		defer close(l.done)
		l.found, l.err = listeners.Look(l.mappings)
		l.found = listeners.Others(l.found, container)
	}()
	return l
}

// refuseListeners waits for a search and returns an error for each listener, if the
// Config is ListenerRefuse.
func (c *Configurator) refuseListeners(l *listenerSearch, id string) error {
	if l == nil || c.cfg.Listeners != ListenerRefuse {
		return nil
	}
	<-l.done
	if l.err != nil {
		return fmt.Errorf("look for processes that listen on the host ports of allocation %q: %w", id, l.err)
	}
	return listenerErrors(id, listeners.Among(l.found, l.mappings, true, true))
}

// listenerErrors returns a *ListenerError for each listener, up to maxListeners.
func listenerErrors(id string, list []listeners.Port) error {
	more := len(list) - maxListeners
	list = list[:min(len(list), maxListeners)]
	inodes := make([]uint32, len(list))
	for i, l := range list {
		inodes[i] = l.Listener.Inode
	}
	var errs []error
	if len(list) > 0 {
		processes := sockdiag.Processes(inodes...)
		for _, l := range list {
			p := processes[l.Listener.Inode]
			errs = append(errs, &ListenerError{
				ID: id, Mapping: l.Mapping, Address: l.Listener.Address.String(), UID: l.Listener.UID, PID: p.PID, Process: p.Name,
			})
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("publish host ports of allocation %q: %w: and on %d more", id, ErrListener, more))
	}
	return errors.Join(errs...)
}

// warnings logs what the caller should know about host ports that were published, and returns the
// texts for Status.Warnings.
func (c *Configurator) warnings(ports []portmap.Mapping, l *listenerSearch, id string, s *Status) []string {
	return append(c.hostIPWarnings(ports, id, s), c.listenerWarnings(l, id, s)...)
}

// listenerWarnings waits for the search, logs the listeners and returns the texts for
// Status.Warnings.
func (c *Configurator) listenerWarnings(l *listenerSearch, id string, s *Status) (texts []string) {
	if l == nil {
		return nil
	}
	<-l.done
	if l.err != nil {
		if c.warned.first(l.err.Error()) {
			c.cfg.Logger.Warn("cannot look for processes that listen on host ports", "error", l.err)
		}
		return nil
	}
	ipv4, ipv6 := families(s)
	list := listeners.Among(l.found, l.mappings, ipv4, ipv6)
	for i, l := range list {
		if i == maxListeners {
			texts = append(texts, fmt.Sprintf("processes of the host listen on %d more published ports", len(list)-i))
			break
		}
		port, address, uid := publishedPort(l.Mapping), l.Listener.Address.String(), l.Listener.UID
		texts = append(texts, fmt.Sprintf("host port %s: a process of the host (user %d) listens on %s; packets to the host port go to the allocation",
			port, uid, address))
		c.cfg.Logger.Warn("a process of the host listens on a published host port; packets to the port now go to the allocation",
			"alloc", id, "port", port, "listens", address, "uid", uid)
	}
	return texts
}

// families reports for which address families an allocation has addresses.
func families(s *Status) (ipv4, ipv6 bool) {
	for _, i := range s.Interfaces {
		for _, a := range i.Addresses {
			if p, err := netip.ParsePrefix(a.Address); err == nil && i.Sandbox != "" {
				ipv4, ipv6 = ipv4 || p.Addr().Unmap().Is4(), ipv6 || !p.Addr().Unmap().Is4()
			}
		}
	}
	return ipv4, ipv6
}

// publishedPort formats a host port with its address, if any, and its protocol.
func publishedPort(m portmap.Mapping) string {
	port := strconv.Itoa(m.HostPort)
	if m.HostIP != "" {
		port = net.JoinHostPort(m.HostIP, port)
	}
	return port + "/" + m.Protocol
}
