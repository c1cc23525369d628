package trace

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/trace/probe"
	"github.com/allocnet/allocnet/sandbox"
)

// client finds out how packets of the client come in: the path has its address, and the
// link if the client is another host.
func (f *tracer) client(context.Context) error {
	from := f.From
	if !from.IsValid() {
		from = f.path.Host.Addr()
	}
	f.path.From = netip.AddrPortFrom(from, 0)
	route, link, err := routeTo(from)
	switch {
	case f.Link != "":
		f.path.Link = f.Link
	case err != nil:
		return f.ends("client", "add a route: without one, no answer reaches it", "the host has no route to %s: %v", from, err)
	case route.Type != unix.RTN_LOCAL:
		f.path.Link = link
	}
	if f.path.Link != "" && f.path.Host.Addr().IsLoopback() {
		return f.ends("client", "publish the port on another address of the host, or on all", "the port is published on %s, which only the host itself reaches", f.path.Host.Addr())
	}
	return nil
}

// routeTo returns the route of the network namespace of the calling thread to an address,
// and the name of its link.
func routeTo(to netip.Addr) (*netlink.Route, string, error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil {
		return nil, "", err
	}
	if len(routes) == 0 {
		return nil, "", unix.ENETUNREACH
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return nil, "", err
	}
	return &routes[0], link.Attrs().Name, nil
}

// send sends the probe.
func (f *tracer) send(ctx context.Context) error {
	const name = "probe"
	if f.protocol == unix.IPPROTO_SCTP {
		f.add(name, Note, "", "none: only TCP and UDP are probed")
		return nil
	}
	inside, err := sandbox.Open(f.Record.Netns)
	if err != nil {
		return f.namespaceGone(err)
	}
	defer inside.Close()
	if !f.settled(ctx, inside) { // sent now, it could arrive after the end of the trace
		f.add(name, Note, "", "none: duplicate address detection is running")
		return nil
	}
	wait := probeTime
	if f.fails(ctx, (*tracer).route, (*tracer).hostLink, (*tracer).inside) {
		wait = brokenTime
	}
	result, err := probe.Send(ctx, probe.Options{
		Protocol: f.protocol, From: f.path.From.Addr(), Link: f.path.Link, Host: f.path.Host, To: f.Address, Inside: inside,
		Wait: wait, NoAnswer: f.fails(ctx, (*tracer).listener, (*tracer).wayBack),
	})
	if errors.Is(err, probe.ErrUnsupported) {
		f.add(name, Note, "", "none: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	if result.Lost {
		f.add(name, Note, "run allocnet trace again", "sent, but messages of the kernel about its path were lost")
		return nil
	}
	f.sent, f.result, f.path.From = true, result, result.Source
	what := map[uint8]string{unix.IPPROTO_TCP: "a SYN", unix.IPPROTO_UDP: "a datagram"}[f.protocol]
	if f.path.Link == "" {
		f.add(name, OK, "", "%s from %s to %s, sent by the host", what, result.Source, f.path.Host)
	} else {
		f.add(name, OK, "", "%s from %s to %s, as if received on %s", what, result.Source, f.path.Host, f.path.Link)
	}
	return nil
}

// passed returns the packet of a kind at the last chain of a hook that it passed, and
// whether it did.
func passed(passes []probe.Pass, kind probe.Kind, hook string) (packet probe.Packet, found bool) {
	for i := range passes {
		if p := &passes[i]; p.Own && p.Kind == kind && p.Hook == hook {
			packet, found = p.Packet, true
		}
	}
	return packet, found
}
