package object

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// LinkLocalAddress is that a link of the host has a link-local address, without which the host forwards no packet to an IPv6
// address whose MAC it has to look up. The kernel adds one some time after the link has come up, and looks for duplicates of
// it for up to two seconds. CHECK does not mind another one than that of the MAC.
type LinkLocalAddress struct{ Link string }

// Compare implements Object.
func (l *LinkLocalAddress) Compare(_ context.Context, v *View) ([]Difference, error) {
	link, err := v.link(l.Link)
	if err != nil || link == nil || len(link.MAC) != 6 {
		return nil, err
	}
	have, err := v.netns.Addresses(link.Index)
	if err != nil {
		return nil, err
	}
	want := Address{IPNet: &net.IPNet{IP: LinkLocal(link.MAC), Mask: net.CIDRMask(64, 128)}, Flags: rtnl.NoDAD, AnyPrefix: true}
	at := slices.IndexFunc(have, want.is)
	if at >= 0 && have[at].Flags&unix.IFA_F_TENTATIVE == 0 {
		return nil, nil
	}
	d := Difference{Put: want.put(link.Index, have)}
	if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() }) {
		d.Finding = fmt.Errorf("interface %q has no link-local address", l.Link)
	}
	if SmallMTU(link) != nil || link.NoIPv6 {
		d.Put = nil
	}
	return []Difference{d}, nil
}

// LinkLocal returns the address from which the host sends neighbour discovery
// over a link with a MAC (RFC 4291, appendix A).
func LinkLocal(mac net.HardwareAddr) net.IP {
	return net.IP{0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}

// LinkLocalRoute is the route of a link of the host to link-local addresses. The table has one for each link, and CHECK does
// not mind it.
type LinkLocalRoute struct{ Link string }

// LinkLocalNetwork is the network of link-local addresses (RFC 4291, section 2.5.6).
var LinkLocalNetwork = &net.IPNet{IP: net.IP{0xfe, 0x80, 15: 0}, Mask: net.CIDRMask(64, 128)}

// Compare implements Object.
func (l *LinkLocalRoute) Compare(_ context.Context, v *View) ([]Difference, error) {
	index, ok, err := v.present(l.Link)
	if err != nil || !ok {
		return nil, err
	}
	if !v.made {
		if has, err := v.Kernel.HasRoute(index, LinkLocalNetwork); err != nil || has || v.lacksIPv6(l.Link) {
			return nil, err
		}
	}
	return []Difference{{Put: func(b *rtnl.Batch) {
		b.EnsureRoute(&rtnl.Route{Index: index, Dst: LinkLocalNetwork, Scope: unix.RT_SCOPE_LINK})
	}}}, nil
}
