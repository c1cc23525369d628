// Package trace follows a published host port to the process that answers, and says where
// the path ends.
package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// State is the state of a step.
type State string

// The states.
const (
	OK     State = "ok"
	Note   State = "note"   // worth to know, but the path continues
	Failed State = "failed" // the path ends here
)

// Step is one object on the path.
type Step struct {
	Name  string `json:"step"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Next is what to do about it.
	Next string `json:"next,omitempty"`
}

// Path is the way of the packets to one host port, over one protocol and address family.
type Path struct {
	ID       string `json:"id"` // of the allocation
	Protocol string `json:"protocol"`
	// Host is the port of the host, To that of the container.
	Host  netip.AddrPort `json:"host"`
	To    netip.AddrPort `json:"to"`
	Steps []Step         `json:"steps"`
	// Reached reports that no step has failed.
	Reached bool `json:"reached"`
}

// Target is a published port of an allocation.
type Target struct {
	Record  *configurator.Record
	Mapping portmap.Mapping
	// Address is an address of the allocation, with a family that the mapping has.
	Address netip.Addr
	// From is the address of a client; the zero Addr stands for the host itself.
	From netip.Addr
}

// Targets returns the published ports of an allocation, one for each address family.
func Targets(r *configurator.Record, from netip.Addr) (list []Target) {
	if r.Status == nil {
		return nil
	}
	var addresses []netip.Addr
	for _, itf := range r.Status.Interfaces {
		for _, a := range itf.Addresses {
			if p, err := netip.ParsePrefix(a.Address); err == nil && itf.Sandbox != "" && !p.Addr().IsLoopback() {
				addresses = append(addresses, p.Addr())
			}
		}
	}
	for _, m := range r.Ports {
		seen := map[bool]bool{}
		for _, a := range addresses {
			host, err := netip.ParseAddr(m.HostIP)
			if err == nil && host.Unmap().Is4() != a.Is4() && m.HostIP != "" || seen[a.Is4()] || from.IsValid() && from.Is4() != a.Is4() {
				continue
			}
			seen[a.Is4()] = true
			list = append(list, Target{Record: r, Mapping: m, Address: a, From: from})
		}
	}
	return list
}

// tracer follows one Target.
type tracer struct {
	Target
	path     *Path
	host     *rtnl.Host
	protocol uint8
}

// errEnds ends the path: its step says why.
var errEnds = errors.New("the path ends")

// Follow follows a port. It changes nothing; the probe opens a TCP connection to the port.
func Follow(ctx context.Context, t Target) (*Path, error) {
	f := &tracer{Target: t, host: rtnl.OpenHost(), protocol: map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[t.Mapping.Protocol]}
	defer f.host.Close()
	f.path = &Path{
		ID: t.Record.ID, Protocol: t.Mapping.Protocol, To: netip.AddrPortFrom(t.Address, uint16(t.Mapping.ContainerPort)),
		Host: netip.AddrPortFrom(f.hostAddress(), uint16(t.Mapping.HostPort)), Steps: []Step{},
	}
	for _, step := range []func(context.Context) error{
		f.mapping, f.process, f.route, f.hostLink, f.inside, f.listener, f.wayBack, f.probe,
	} {
		if err := ctx.Err(); err != nil {
			return f.path, err
		}
		if err := step(ctx); errors.Is(err, errEnds) {
			return f.path, nil
		} else if err != nil {
			return f.path, fmt.Errorf("trace %s port %d of allocation %q: %w", t.Mapping.Protocol, t.Mapping.HostPort, t.Record.ID, err)
		}
	}
	f.path.Reached = true
	return f.path, nil
}

func (f *tracer) add(name string, state State, next, format string, args ...any) {
	f.path.Steps = append(f.path.Steps, Step{Name: name, State: state, Found: fmt.Sprintf(format, args...), Next: next})
}

func (f *tracer) ends(name, next, format string, args ...any) error {
	f.add(name, Failed, next, format, args...)
	return errEnds
}

// hostAddress returns the address of the host at which the port is published, or the
// address from which the host sends to the allocation's network.
func (f *tracer) hostAddress() netip.Addr {
	if host, err := netip.ParseAddr(f.Mapping.HostIP); err == nil && !host.IsUnspecified() {
		return host.Unmap()
	}
	if routes, err := f.host.RouteGet(f.Address.AsSlice()); err == nil && len(routes) > 0 {
		if a, ok := netip.AddrFromSlice(routes[0].Src); ok {
			return a.Unmap()
		}
	}
	if f.Address.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// mapping looks the host port up in allocnet's tables.
func (f *tracer) mapping(ctx context.Context) error {
	const name = "host port"
	repair := "allocnet repair restores it; allocnet events shows what removes it"
	return ruleset.Lend(func(r *ruleset.Ruleset) error {
		m, owner, err := r.Destination(ctx, f.path.Host.Addr(), f.protocol, f.path.Host.Port())
		switch {
		case err != nil:
			return err
		case m == nil && f.Record.Engine != configurator.EngineNative:
			f.add(name, Note, "", "published by plugin binaries, whose rules are not followed")
		case m == nil:
			return f.ends(name, repair, "allocnet's nftables tables do not have %s port %d", f.Mapping.Protocol, f.Mapping.HostPort)
		case m.To != f.path.To:
			return f.ends(name, "allocnet history "+owner.ID, "it leads to %s of %s", m.To, ownerText(owner))
		default:
			f.add(name, OK, "", "nftables redirects %s to %s", f.path.Host, m.To)
		}
		return nil
	})
}

func ownerText(o names.Owner) string {
	return fmt.Sprintf("container %s in network %s", o.ID, o.Network)
}

// process looks for processes of the host on the same port, which get no packets.
func (f *tracer) process(context.Context) error {
	found, err := f.listeners(f.path.Host)
	if err != nil {
		return err
	}
	for _, text := range found {
		f.add("process of the host", Note, "let it listen on another port: the allocation gets the packets", "%s", text)
	}
	return nil
}

// listeners describes the processes that listen on a port in the network namespace of the
// calling thread.
func (f *tracer) listeners(at netip.AddrPort) (texts []string, err error) {
	if f.protocol == unix.IPPROTO_SCTP {
		return nil, nil
	}
	found, err := sockdiag.Look(sockdiag.Ports{Protocol: f.protocol, Numbers: []uint16{at.Port()}, Only6: at.Addr().Is6()})
	var inodes []uint32
	for _, l := range found {
		inodes = append(inodes, l.Inode)
	}
	processes := sockdiag.Processes(inodes...)
	for _, l := range found {
		if !l.Takes(at.Addr()) {
			continue
		}
		text := "a process"
		if p, ok := processes[l.Inode]; ok {
			text = fmt.Sprintf("%s (process %d)", p.Name, p.PID)
		}
		texts = append(texts, fmt.Sprintf("%s listens on %s", text, l.Address))
	}
	return texts, err
}

// route looks up the host's route to the allocation.
func (f *tracer) route(context.Context) error {
	const name = "route"
	routes, err := f.host.RouteGet(f.Address.AsSlice())
	if err != nil || len(routes) == 0 {
		return f.ends(name, "allocnet repair restores it", "the host has no route to %s", f.Address)
	}
	link, err := f.host.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return f.ends(name, "allocnet repair", "the route to %s leads to a link that is gone", f.Address)
	}
	for _, itf := range f.Record.Status.Interfaces {
		if itf.Sandbox == "" && itf.Name == link.Attrs().Name {
			f.add(name, OK, "", "%s is reached over %s", f.Address, link.Attrs().Name)
			return nil
		}
	}
	return f.ends(name, fmt.Sprintf("find out who added it: ip route get %s", f.Address),
		"%s is routed over %s, which is no interface of the allocation", f.Address, link.Attrs().Name)
}

// hostLink looks at the host's interfaces of the allocation.
func (f *tracer) hostLink(context.Context) error {
	const name = "link"
	for _, itf := range f.Record.Status.Interfaces {
		if itf.Sandbox != "" {
			continue
		}
		link, err := f.host.LinkByName(itf.Name)
		switch {
		case rtnl.IsNotFound(err):
			return f.ends(name, "allocnet setup sets the allocation up again", "%s is gone", itf.Name)
		case err != nil:
			return err
		case link.Attrs().Flags&net.FlagUp == 0:
			return f.ends(name, "ip link set "+itf.Name+" up, or allocnet repair", "%s is down", itf.Name)
		case link.Attrs().RawFlags&unix.IFF_RUNNING == 0:
			return f.ends(name, "bring up the interface inside of the namespace", "%s has no carrier: its other end is down", itf.Name)
		}
		f.add(name, OK, "", "%s is up", itf.Name)
	}
	return nil
}

// within runs a function in the network namespace of the allocation.
func (f *tracer) within(do func() error) error {
	s, err := sandbox.Open(f.Record.Netns)
	if err != nil {
		return f.ends("namespace", "allocnet teardown "+f.Record.ID, "%s: %v", f.Record.Netns, err)
	}
	defer s.Close()
	return s.Do(do)
}

// inside looks for the address in the network namespace.
func (f *tracer) inside(context.Context) error {
	const name = "interface inside"
	return f.within(func() error {
		interfaces, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, itf := range interfaces {
			addrs, err := itf.Addrs()
			if err != nil {
				return err
			}
			has := slices.ContainsFunc(addrs, func(a net.Addr) bool {
				p, err := netip.ParsePrefix(a.String())
				return err == nil && p.Addr().Unmap() == f.Address
			})
			switch {
			case !has:
			case itf.Flags&net.FlagUp == 0:
				return f.ends(name, "ip -n NAME link set "+itf.Name+" up", "%s is down", itf.Name)
			default:
				f.add(name, OK, "", "%s has %s", itf.Name, f.Address)
				return nil
			}
		}
		return f.ends(name, "allocnet setup sets the allocation up again", "no interface in %s has %s", f.Record.Netns, f.Address)
	})
}

// listener looks for the process of the allocation.
func (f *tracer) listener(context.Context) error {
	const name = "listener inside"
	if f.protocol == unix.IPPROTO_SCTP {
		f.add(name, Note, "", "sockets of SCTP are not listed")
		return nil
	}
	return f.within(func() error {
		found, err := f.listeners(f.path.To)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return f.ends(name, "start the server, or let it listen on all addresses rather than on the loopback",
				"nothing listens on %s port %d for %s", f.Mapping.Protocol, f.path.To.Port(), f.Address)
		}
		f.add(name, OK, "", "%s", found[0])
		return nil
	})
}

// wayBack looks up the route of the answers.
func (f *tracer) wayBack(context.Context) error {
	const name = "way back"
	client := f.From
	if !client.IsValid() {
		client = f.path.Host.Addr()
	}
	if client.IsLoopback() {
		return nil // the host's own connections come from the gateway
	}
	return f.within(func() error {
		routes, err := netlinkRoute(client)
		if err != nil || routes == "" {
			return f.ends(name, "add a default route to the network, or set the allocation up again", "%s has no route to %s", f.Record.Netns, client)
		}
		f.add(name, OK, "", "answers to %s leave over %s", client, routes)
		return nil
	})
}

// probeTime bounds the probe.
const probeTime = 2 * time.Second

// probe opens a connection to the host port.
func (f *tracer) probe(ctx context.Context) error {
	const name = "probe"
	if f.protocol != unix.IPPROTO_TCP {
		f.add(name, Note, "", "only TCP ports are probed")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	begin := time.Now()
	at := net.JoinHostPort(f.path.Host.Addr().String(), strconv.Itoa(int(f.path.Host.Port())))
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		return f.ends(name, "rules of other programs may drop the packets: allocnet doctor, nft monitor trace", "a connection to %s fails: %v", at, err)
	}
	_ = conn.Close()
	f.add(name, OK, "", "a connection to %s takes %s", at, time.Since(begin).Round(10*time.Microsecond))
	return nil
}
