package bandwidth

import (
	"crypto/sha512"
	"encoding/hex"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	ifbPrefix = "bwp"
	// ifbLength is the most that a link's name can have, without its zero.
	ifbLength = unix.IFNAMSIZ - 1
)

// ifbName is the name of a container's ifb on a network, as the reference plugin
// has it: a container's interfaces on one network share it.
func ifbName(network, container string) string {
	sum := sha512.Sum512([]byte(network + container))
	return (ifbPrefix + hex.EncodeToString(sum[:]))[:ifbLength]
}

// newIfb is a link for what a host's end redirects to it. It has no queue of its
// own but the bucket's.
func newIfb(name string, mtu int) *netlink.Ifb {
	return &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, Flags: net.FlagUp}}
}

// ingressHandle is ffff:, the only one that the kernel gives to that discipline.
var ingressHandle = netlink.MakeHandle(0xffff, 0)

// newIngress is the discipline of what a link receives.
func newIngress(link int) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link, Handle: ingressHandle, Parent: netlink.HANDLE_INGRESS,
	}}
}

// redirect sends all that a link receives through an ifb.
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

// redirects reports whether one of the filters sends everything to an ifb.
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
