package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Port is a port of the host, of a protocol whose clients may go on with the
// connection that the kernel tracks, without ever beginning a new one: IPPROTO_UDP
// or IPPROTO_SCTP.
type Port struct {
	Protocol uint8
	Number   uint16
	// HostIP is its address; an invalid one stands for all addresses of the host.
	HostIP netip.Addr
}

const (
	// contactedSize bounds the ports of single addresses. Of more, none is known.
	contactedSize = 1 << 14
	// portsSize has room for every port of both protocols, for complete and for
	// tokens.
	portsSize  = 1<<17 + 16
	missedSize = 16
)

// complete is the element that says that the sets know what was contacted before
// they were there. Neither it nor a token, of other numbers, is added by a packet:
// there is no such protocol.
var complete = Port{Protocol: 255}

// Contacted returns which of the ports of a family (AF_INET, AF_INET6) may be
// those of connections that the kernel tracks and that nothing redirected: a
// connection to the host itself gets its entry only after its first packet went
// through the hook in which the tables note its port. To look through all that
// the kernel tracks takes milliseconds.
//
// known is false while the tables cannot tell, because they are new or could not
// note everything. Then all ports are returned; see LearnContacted.
func (r *Ruleset) Contacted(ctx context.Context, family uint8, ports []Port) (contacted []Port, known bool, err error) {
	if len(ports) == 0 {
		return nil, true, nil
	}
	t := tableOfFamily(family)
	list := []element{t.contactedElement(complete), t.missedElement(unix.IPPROTO_UDP), t.missedElement(unix.IPPROTO_SCTP)}
	state := len(list)
	for _, p := range ports {
		list = append(list, t.contactedElement(p))
	}
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return ports, false, fmt.Errorf("look up contacted ports: %w", err)
	}
	if found[0].set == nil || found[1].set != nil || found[2].set != nil {
		return ports, false, nil
	}
	for i, p := range ports {
		if found[state+i].set != nil && !slices.Contains(contacted, p) {
			contacted = append(contacted, p)
		}
	}
	return contacted, true, nil
}

// ForgetContacted takes ports out of those that were contacted. They must be
// redirected by now, and their connections must have been flushed.
func (r *Ruleset) ForgetContacted(ctx context.Context, family uint8, ports []Port) error {
	var err error
	for range attempts {
		var list, found []element
		for _, p := range ports {
			list = append(list, tableOfFamily(family).contactedElement(p))
		}
		if found, err = r.lookUp(ctx, list); err != nil {
			break
		}
		found = slices.DeleteFunc(found, func(e element) bool { return e.set == nil })
		if err = r.apply(ctx, change{remove: found}); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("forget contacted ports: %w", err)
	}
	return nil
}

// LearnContacted empties the sets, has the ports listed that the kernel tracks
// connections to, and adds those: from then on all is known. Several may do so at
// once; what one of them emptied is not known to another. Where the tables are
// missing, or there is more than they have room for, nothing is known afterwards.
func (r *Ruleset) LearnContacted(ctx context.Context, family uint8, tracked func(context.Context) ([]Port, error)) error {
	t := tableOfFamily(family)
	token := []element{t.contactedElement(Port{Protocol: complete.Protocol, Number: uint16(1 + rand.N(1<<16-1))})}
	err := r.socket.Transaction(ctx, func(b *sock.Requests) {
		for _, s := range []*set{t.contacted, t.contactedPorts, t.contactedMissed} {
			emptySet(b, s)
		}
		putElements(b, token, unix.NFT_MSG_NEWSETELEM)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	var ports []Port
	if err == nil {
		ports, err = tracked(ctx)
	}
	if err == nil && len(ports) <= contactedSize/2 {
		err = r.socket.Transaction(ctx, func(b *sock.Requests) {
			putElements(b, token, unix.NFT_MSG_DELSETELEM)
			putElements(b, t.learnt(ports), unix.NFT_MSG_NEWSETELEM)
		})
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("learn contacted ports: %w", err)
	}
	return nil
}

// learnt are the elements of ports of single addresses, and complete.
func (t *table) learnt(ports []Port) []element {
	var single, list []element
	for _, p := range ports {
		single = append(single, t.contactedElement(p))
		p.HostIP = netip.Addr{}
		list = append(list, t.contactedElement(p))
	}
	return append(append(single, list...), t.contactedElement(complete))
}

func tableOfFamily(family uint8) *table {
	if family == unix.AF_INET6 {
		return ip6
	}
	return ip
}

// contactedElement is that of a port of one address, or of any.
func (t *table) contactedElement(p Port) element {
	e, at := element{set: t.contactedPorts}, 0
	if p.HostIP.IsValid() && !p.HostIP.IsUnspecified() {
		e.set = t.contacted
		at = copy(e.key[:], p.HostIP.Unmap().AsSlice())
	}
	e.key[at] = p.Protocol
	binary.BigEndian.PutUint16(e.key[at+4:], p.Number)
	return e
}

func (t *table) missedElement(protocol uint8) element {
	e := element{set: t.contactedMissed}
	e.key[0] = protocol
	return e
}
