package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Flow is a tracked connection as it passes the forward hook: the destination is that after its
// translation, and the source is the client's own.
type Flow struct {
	Protocol            uint8
	Source, Destination netip.Addr
	Port                uint16 // of the destination; of ICMP the type
	Redirected          bool   // the first packet was sent to another address or port: the Original
	Original            netip.Addr
	OriginalPort        uint16 // as Port
}

// Ended is the mark of the entries that EndFlows keeps. Rules drop the answers of such a connection, and
// decide on each packet in the direction of the first one as if it were the first.
const Ended = 0xa110c0de

// EndFlows ends the tracked connections from or to one of the addresses, or an address in one of the networks,
// for which denied returns true. It deletes the entries of TCP and ICMP: what follows in such a connection
// begins no new one. With other protocols, the next answer would begin a connection in the other direction, in
// which the packets of the former client were the answers. So these entries stay, with the mark Ended, until
// the connection is idle. EndFlows deletes those for which denied returns false. After an error of denied,
// the entry stays as it is.
func (c *Conn) EndFlows(ctx context.Context, addresses []netip.Addr, networks []netip.Prefix, denied func(Flow) (bool, error)) error {
	if c.none() {
		return nil
	}
	wanted, families := map[netip.Addr]bool{}, map[uint8]bool{}
	for _, a := range addresses {
		a = a.Unmap()
		wanted[a], families[family(a)] = true, true
	}
	for _, n := range networks {
		families[family(n.Addr())] = true
	}
	within := func(a netip.Addr) bool {
		return wanted[a] || slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
	}
	concerns := func(e *entry) bool { return within(e.source) || within(e.answers.source) }
	var errs []error
	for f := range families {
		if c.lacks(f, concerns) {
			continue
		}
		errs = append(errs, c.endEach(ctx, f, func(e *entry) (bool, error) {
			if !concerns(e) {
				return e.mark == Ended, nil // as it is
			}
			return denied(e.flow())
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end tracked connections: %w", err)
	}
	return nil
}

// endEach ends the entries of a family that are denied.
func (c *Conn) endEach(ctx context.Context, family uint8, denied func(*entry) (bool, error)) error {
	var gone, ended [][]byte
	var first error // a policy that cannot be read fails for each of its connections
	err := c.each(ctx, filter{family: family}, func(e *entry) {
		switch is, err := denied(e); {
		case err != nil:
			first = cmp.Or(first, err)
		case is && e.endsByMark() && e.mark != Ended:
			ended = append(ended, slices.Clone(e.key))
		case is != (e.mark == Ended):
			gone = append(gone, slices.Clone(e.key))
		}
	})
	if isUnsupported(err) { // see deleteEach
		return nil
	}
	errs := []error{first, err}
	for _, key := range gone {
		errs = append(errs, c.deleteEntry(ctx, family, key))
	}
	for _, key := range ended {
		errs = append(errs, c.markEntry(ctx, family, key))
	}
	return errors.Join(errs...)
}

// endsByMark reports whether EndFlows marks the entry. Rules do not see the packets that a flow table
// forwards.
func (e *entry) endsByMark() bool {
	const offloaded = 1<<14 | 1<<15 // IPS_OFFLOAD, IPS_HW_OFFLOAD
	switch e.protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return false
	}
	return e.status&offloaded == 0
}

// markEntry marks the entry with a key as Ended, if it still exists.
func (c *Conn) markEntry(ctx context.Context, family uint8, key []byte) error {
	err := c.request(ctx, changeEntry, family, func(r *sock.Requests) {
		r.Append(key...)
		r.Uint32BE(ctaMark, Ended)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (e *entry) flow() Flow {
	f := Flow{Protocol: e.protocol, Source: e.source, Destination: e.answers.source, Port: e.answers.sourcePort, Original: e.destination, OriginalPort: e.port}
	f.Redirected = e.destination != e.answers.source
	if f.Protocol == unix.IPPROTO_ICMP || f.Protocol == unix.IPPROTO_ICMPV6 {
		f.Port, f.OriginalPort = uint16(e.icmpType), uint16(e.icmpType)
	} else if e.port != e.answers.sourcePort {
		f.Redirected = true
	}
	return f
}
