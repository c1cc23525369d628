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

// maxListeners bounds what is said of one allocation.
const maxListeners = 16

// listened is a host port on which a process of the host listens.
type listened struct {
	mapping  portmap.Mapping
	listener sockdiag.Listener
}

// listenerLook finds the processes that listen on the host ports of a record.
type listenerLook struct {
	mappings []portmap.Mapping
	done     chan struct{}
	found    []sockdiag.Listener
	err      error
}

// lookForListeners begins to look for processes of the host that listen on the host ports
// of a record. By default that goes on beside the ADD, which need not wait for it; where
// they are refused, it ends before anything is done. The look is nil where there is
// nothing to find.
func (c *Configurator) lookForListeners(r *record.Record) (*listenerLook, error) {
	if len(r.Ports) == 0 || c.cfg.Listeners == ListenerIgnore {
		return nil, nil
	}
	l := &listenerLook{mappings: r.Ports, done: make(chan struct{})}
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
	return nil, refuseListened(r.ID, l.among(true, true))
}

// protocols are those of which the kernel lists the sockets that listen.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// ports are what the kernel is asked for.
func (l *listenerLook) ports() []sockdiag.Ports {
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

// hostIPs are the addresses of the host on which a port is published for an allocation
// with addresses of some families; the unspecified one of a family stands for all of it.
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

// among are the host ports of which listeners lose packets to an allocation with
// addresses of some families. Listeners on the same address are one.
func (l *listenerLook) among(ipv4, ipv6 bool) (list []listened) {
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
					list = append(list, listened{m, f})
					break
				}
			}
		}
	}
	return list
}

// refuseListened returns a *ListenerError for each of some host ports.
func refuseListened(id string, list []listened) error {
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

// warnings are for the Status of an allocation that was set up. They are logged, too.
func (c *Configurator) warnings(l *listenerLook, r *record.Record, s *Status) (texts []string) {
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
		texts = append(texts, fmt.Sprintf("host port %s: a process of the host (user %d) listens on %s; what is sent to the host port goes to the allocation",
			port, uid, address))
		c.cfg.Logger.Warn("a process of the host listens on a host port; what is sent there goes to the allocation now",
			"alloc", r.ID, "port", port, "listens", address, "uid", uid)
	}
	return texts
}

// families reports of which families an allocation has addresses.
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

// publishedPort is a host port with its address, if it has one, and its protocol.
func publishedPort(m portmap.Mapping) string {
	port := strconv.Itoa(m.HostPort)
	if m.HostIP != "" {
		port = net.JoinHostPort(m.HostIP, port)
	}
	return port + "/" + m.Protocol
}
