// Package trace follows a published host port to the process that answers, and says where
// the path ends.
//
// A tracer walks along the path in steps, each of which looks at one object: the host port
// (hostport.go), the links and routes (link.go, route.go, client.go), the allocation's own
// network namespace (inside.go). Package probe then sends a packet; the steps behind it are about
// the chains of nftables that the packet and its answer have passed (rules.go), the rule of a
// network policy that drops it (policy.go), and what conntrack knows (answer.go).
package trace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/trace/probe"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/portmap"
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
	// Chain is the chain of nftables that the step is about.
	Chain *Chain `json:"chain,omitempty"`
}

// Path is the way of the packets to one host port, over one protocol and address family.
type Path struct {
	ID       string `json:"id"` // of the allocation
	Protocol string `json:"protocol"`
	// Host is the port of the host, To that of the container.
	Host netip.AddrPort `json:"host"`
	To   netip.AddrPort `json:"to"`
	// From is the source of the probe; its port is 0 if none was sent.
	From netip.AddrPort `json:"from"`
	// Link is the link as if on which the probe was received; "" if the host sent it.
	Link  string `json:"link,omitempty"`
	Steps []Step `json:"steps"`
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
	// Link is the link on which packets of another host arrive; "" stands for that of the
	// host's route to it.
	Link string
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
	early    bool // the probe is not yet sent
	sent     bool // a probe was sent
	result   *probe.Result
}

// errEnds ends the path: its step says why.
var errEnds = errors.New("the path ends")

// probeTime bounds the wait for the answer to the probe: a neighbour is solicited for three
// seconds, and then the kernel drops the probe that waits for it. brokenTime bounds it where
// the probe is known not to arrive.
var (
	probeTime  = 3500 * time.Millisecond
	brokenTime = 100 * time.Millisecond
)

// Follow follows a port. It changes nothing. For TCP and UDP it sends a probe: see package
// probe.
func Follow(ctx context.Context, t Target) (*Path, error) {
	f := &tracer{Target: t, host: rtnl.OpenHost(), result: &probe.Result{},
		protocol: map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[t.Mapping.Protocol]}
	defer f.host.Close()
	f.path = &Path{
		ID: t.Record.ID, Protocol: t.Mapping.Protocol, To: netip.AddrPortFrom(t.Address, uint16(t.Mapping.ContainerPort)),
		Host: netip.AddrPortFrom(f.hostAddress(), uint16(t.Mapping.HostPort)), Steps: []Step{},
	}
	err := f.run(ctx, f.mapping, f.process, f.client, f.send,
		f.request(probe.Prerouting, probe.Output), f.route, f.routed, f.request(probe.Forward, probe.Postrouting, probe.Egress), f.connection,
		f.hostLink, f.inside, f.arrived, f.requestInside, f.listener, f.wayBack, f.answerInside, f.answerOnHost, f.answer)
	if errors.Is(err, errEnds) {
		return f.path, nil
	}
	if err != nil {
		return f.path, fmt.Errorf("trace %s port %d of allocation %q: %w", t.Mapping.Protocol, t.Mapping.HostPort, t.Record.ID, err)
	}
	f.path.Reached = true
	return f.path, nil
}

// run runs steps until one of them ends the path.
func (f *tracer) run(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fails reports whether a step would end the path, before the probe is sent.
func (f *tracer) fails(ctx context.Context, steps ...func(*tracer, context.Context) error) bool {
	other := *f
	other.early = true
	other.path = &Path{Host: f.path.Host, To: f.path.To, From: f.path.From}
	for _, step := range steps {
		if step(&other, ctx) != nil {
			return true
		}
	}
	return false
}

func (f *tracer) add(name string, state State, next, format string, args ...any) {
	f.path.Steps = append(f.path.Steps, Step{Name: name, State: state, Found: fmt.Sprintf(format, args...), Next: next})
}

func (f *tracer) ends(name, next, format string, args ...any) error {
	f.add(name, Failed, next, format, args...)
	return errEnds
}
