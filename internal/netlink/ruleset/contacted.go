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

// Port is a port of the host, of a protocol whose clients can continue a connection
// that the kernel tracks without ever beginning a new one: IPPROTO_UDP or IPPROTO_SCTP.
type Port struct {
	Protocol uint8
	Number   uint16
	// HostIP is the address of the port; an invalid one stands for all addresses of
	// the host.
	HostIP netip.Addr
}

const (
	// contactedSize is the maximum number of ports of single addresses. If there
	// are more, the tables cannot tell which ports were contacted.
	contactedSize = 1 << 14
	// portsSize has room for every port of both protocols, for the element
	// complete, and for tokens.
	portsSize = 1<<17 + 16
	// missedSize is more than the number of protocols.
	missedSize = 16
)

// complete is an element that exists if the sets also contain the ports that were
// contacted before the sets were made. A token is a temporary element with the same
// protocol and another number: see LearnContacted. Packets add neither of them, because
// there is no such protocol.
var complete = Port{Protocol: 255}

// Contacted returns which of the ports of a family (AF_INET, AF_INET6) may have
// connections that the kernel tracks and that were not redirected. No such connection
// is missed: the kernel makes the entry of a connection to the host itself after the
// first packet has passed the hook in which the tables note its port. Searching all
// connections that the kernel tracks would take milliseconds.
//
// known is false while the tables cannot answer, because they are new or did not have
// room for every port of these protocols. Then all ports are returned; see LearnContacted.
func (r *Ruleset) Contacted(ctx context.Context, family uint8, ports []Port) (contacted []Port, known bool, err error) {
	if len(ports) == 0 {
		return nil, true, nil
	}
	t := tableOfFamily(family)
	list := []element{t.contactedElement(complete)}
	for _, protocol := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		if slices.ContainsFunc(ports, func(p Port) bool { return p.Protocol == protocol }) {
			list = append(list, t.missedElement(protocol))
		}
	}
	state := len(list)
	for _, p := range ports {
		list = append(list, t.contactedElement(p))
	}
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return ports, false, fmt.Errorf("look up contacted ports: %w", err)
	}
	missed := slices.ContainsFunc(found[1:state], func(e element) bool { return e.set != nil })
	if found[0].set == nil || missed {
		return ports, false, nil
	}
	for i, p := range ports {
		if found[state+i].set != nil && !slices.Contains(contacted, p) {
			contacted = append(contacted, p)
		}
	}
	return contacted, true, nil
}

// ForgetContacted removes ports from the contacted ones. By then the ports must be
// redirected and their connections flushed.
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

// LearnContacted empties the sets, calls tracked for the ports to which the kernel
// tracks connections, and adds these. From then on Contacted knows all ports. Several
// processes may call it at the same time: a call whose token another call has removed
// adds nothing. If the tables are missing, or there are more ports than they have room
// for, Contacted knows no ports afterwards.
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

// learnt returns the elements for ports of single addresses, each also without its
// address, and the element complete.
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

// contactedElement returns the element for a port of one address or of every address.
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
