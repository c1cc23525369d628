package configurator

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// maxListeners bounds the number of listeners that are reported for one allocation.
const maxListeners = 16

// listenedPort is a host port and a process of the host that listens on it.
type listenedPort struct {
	mapping  portmap.Mapping
	listener sockdiag.Listener
}

// listenerSearch is a search for processes that listen on host ports. found and err are
// valid once done is closed.
type listenerSearch struct {
	mappings []portmap.Mapping
	done     chan struct{}
	found    []sockdiag.Listener
	err      error
}

// searchListeners starts a search for processes of the host that listen on the host
// ports of a record. By default, the search runs concurrently with ADD. With
// ListenerRefuse, searchListeners waits for it and returns an error for each listener.
// It returns nil if there is nothing to search for.
func (c *Configurator) searchListeners(r *record.Record) (*listenerSearch, error) {
	if len(r.Ports) == 0 || c.cfg.Listeners == ListenerIgnore {
		return nil, nil
	}
	l := &listenerSearch{mappings: r.Ports, done: make(chan struct{})}
	wanted := l.ports()
	go func() {
		defer close(l.done)
		l.found, l.err = sockdiag.Look(wanted...)
	}()
	if c.cfg.Listeners != ListenerRefuse {
		return l, nil
	}
	<-l.done
	if l.err != nil {
		return nil, fmt.Errorf("look for processes that listen on the host ports of allocation %q: %w", r.ID, l.err)
	}
	return nil, listenerErrors(r.ID, l.among(true, true))
}

// protocols are the protocols whose listening sockets the kernel lists.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// ports returns the ports to query from the kernel, grouped by protocol.
func (l *listenerSearch) ports() []sockdiag.Ports {
	numbers, both := map[uint8][]uint16{}, map[uint8]bool{}
	for _, m := range l.mappings {
		protocol, known := protocols[m.Protocol]
		if !known {
			continue
		}
		numbers[protocol] = append(numbers[protocol], uint16(m.HostPort))
		for _, ip := range hostIPs(m, true, true) {
			both[protocol] = both[protocol] || ip.Is4()
		}
	}
	var wanted []sockdiag.Ports
	for protocol, list := range numbers {
		wanted = append(wanted, sockdiag.Ports{Protocol: protocol, Numbers: list, Only6: !both[protocol]})
	}
	return wanted
}

// hostIPs returns the host addresses on which a port is published for an allocation
// with addresses of the given families. An unspecified address stands for all addresses
// of its family.
func hostIPs(m portmap.Mapping, ipv4, ipv6 bool) (ips []netip.Addr) {
	given, err := netip.ParseAddr(m.HostIP)
	given = given.Unmap().WithZone("")
	if ipv4 && (err != nil || given.Is4()) {
		ips = append(ips, netip.IPv4Unspecified())
	}
	if ipv6 && (err != nil || given.Is6()) {
		ips = append(ips, netip.IPv6Unspecified())
	}
	if err == nil && len(ips) > 0 {
		ips[0] = given
	}
	return ips
}

// among returns the listeners whose packets are redirected to an allocation with
// addresses of the given families. Several listeners on the same address and port count
// as one.
func (l *listenerSearch) among(ipv4, ipv6 bool) (list []listenedPort) {
	if len(l.found) == 0 {
		return nil
	}
	type slot struct {
		protocol uint8
		port     uint16
	}
	at := map[slot][]sockdiag.Listener{}
	seen := map[netip.AddrPort]map[uint8]bool{}
	for _, f := range l.found {
		if seen[f.Address] == nil {
			seen[f.Address] = map[uint8]bool{}
		}
		if !seen[f.Address][f.Protocol] {
			seen[f.Address][f.Protocol] = true
			s := slot{f.Protocol, f.Address.Port()}
			at[s] = append(at[s], f)
		}
	}
	for _, m := range l.mappings {
		for _, f := range at[slot{protocols[m.Protocol], uint16(m.HostPort)}] {
			for _, ip := range hostIPs(m, ipv4, ipv6) {
				if f.Takes(ip) {
					list = append(list, listenedPort{m, f})
					break
				}
			}
		}
	}
	return list
}

// listenerErrors returns a *ListenerError for each listener, up to maxListeners.
func listenerErrors(id string, list []listenedPort) error {
	more := len(list) - maxListeners
	list = list[:min(len(list), maxListeners)]
	inodes := make([]uint32, len(list))
	for i, l := range list {
		inodes[i] = l.listener.Inode
	}
	var errs []error
	if len(list) > 0 {
		processes := sockdiag.Processes(inodes...)
		for _, l := range list {
			p := processes[l.listener.Inode]
			errs = append(errs, &ListenerError{
				ID: id, Mapping: l.mapping, Address: l.listener.Address.String(), UID: l.listener.UID, PID: p.PID, Process: p.Name,
			})
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("publish host ports of allocation %q: %w: and on %d more", id, ErrListener, more))
	}
	return errors.Join(errs...)
}

// warnings waits for the search, logs the listeners and returns the texts for
// Status.Warnings.
func (c *Configurator) warnings(l *listenerSearch, r *record.Record, s *Status) (texts []string) {
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
	list := l.among(families(s))
	for i, l := range list {
		if i == maxListeners {
			texts = append(texts, fmt.Sprintf("processes of the host listen on %d more published ports", len(list)-i))
			break
		}
		port, address, uid := publishedPort(l.mapping), l.listener.Address.String(), l.listener.UID
		texts = append(texts, fmt.Sprintf("host port %s: a process of the host (user %d) listens on %s; packets to the host port go to the allocation",
			port, uid, address))
		c.cfg.Logger.Warn("a process of the host listens on a published host port; packets to the port now go to the allocation",
			"alloc", r.ID, "port", port, "listens", address, "uid", uid)
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
