package bandwidth

import (
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// ifbName returns the name of a container's ifb on a network.
func ifbName(network, container string) string { return names.Ifb(network, container) }

// newIfb returns an ifb to which a host's end redirects. Its only queue is the
// bucket's.
func newIfb(name string, mac net.HardwareAddr, mtu int) *netlink.Ifb {
	return &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac, MTU: mtu, Flags: net.FlagUp}}
}

// ingressHandle is ffff:, the only handle that the kernel accepts for the
// ingress discipline.
var ingressHandle = netlink.MakeHandle(0xffff, 0)

// newIngress returns the ingress discipline of a link.
func newIngress(link int) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link, Handle: ingressHandle, Parent: netlink.HANDLE_INGRESS,
	}}
}

// redirect returns a filter that redirects all frames that a link receives to
// an ifb.
func redirect(link, ifb int) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: link, Parent: ingressHandle, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		ClassId: netlink.MakeHandle(1, 1),
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_EGRESS_REDIR,
			Ifindex:      ifb,
		}},
	}
}

// redirects reports whether one of the filters redirects to an ifb.
func redirects(filters []netlink.Filter, ifb int) bool {
	for _, f := range filters {
		u32, ok := f.(*netlink.U32)
		if !ok {
			continue
		}
		for _, a := range u32.Actions {
			if m, ok := a.(*netlink.MirredAction); ok && m.MirredAction == netlink.TCA_EGRESS_REDIR && m.Ifindex == ifb {
				return true
			}
		}
	}
	return false
}
