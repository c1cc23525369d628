package rtnl

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Attributes of a bridge (linux/if_link.h): packets between its ports pass the hooks of IPv4
// and of IPv6, with the rules and the connection tracking of the host.
const (
	bridgeCallsIPv4 = 36 // IFLA_BR_NF_CALL_IPTABLES
	bridgeCallsIPv6 = 37 // IFLA_BR_NF_CALL_IP6TABLES
)

// EnsureBridgeRules makes packets between the ports of a bridge pass the rules of the host. It has the kernel load
// what it needs for that.
func (h *Host) EnsureBridgeRules(ctx context.Context, bridge string) error {
	if err := netfilter.LoadBridgeNetfilter(ctx); err != nil {
		return err
	}
	err := h.CheckBridgeRules(bridge)
	if err == nil || IsNotFound(err) {
		return err
	}
	index, err := h.Index(bridge)
	if err != nil {
		return err
	}
	var b Batch
	r := b.begin(fmt.Sprintf("apply rules within bridge %q", bridge), unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	info := r.Nest(unix.IFLA_LINKINFO)
	r.String(nl.IFLA_INFO_KIND, "bridge")
	data := r.Nest(nl.IFLA_INFO_DATA)
	r.Uint8(bridgeCallsIPv4, 1)
	r.Uint8(bridgeCallsIPv6, 1)
	r.End(data)
	r.End(info)
	return h.Apply(&b)
}

// CheckBridgeRules returns an error if EnsureBridgeRules has something to do.
func (h *Host) CheckBridgeRules(bridge string) error {
	if !netfilter.HasBridgeNetfilter() {
		return netfilter.ErrNoBridgeNetfilter
	}
	calls := [2]bool{}
	err := get(&h.conns, byName(bridge), func(answer []byte) {
		if len(answer) < unix.SizeofIfInfomsg {
			return
		}
		sock.EachAttribute(answer[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
			if kind == unix.IFLA_LINKINFO {
				calls = readBridgeCalls(value)
			}
		})
	})
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", bridge, err)
	}
	if !calls[0] || !calls[1] {
		return fmt.Errorf("packets within bridge %q do not pass the rules of the host", bridge)
	}
	return nil
}

func readBridgeCalls(info []byte) (calls [2]bool) {
	sock.EachAttribute(info, func(kind uint16, value []byte) {
		if kind != nl.IFLA_INFO_DATA {
			return
		}
		sock.EachAttribute(value, func(kind uint16, value []byte) {
			if kind == bridgeCallsIPv4 || kind == bridgeCallsIPv6 {
				calls[kind-bridgeCallsIPv4] = len(value) > 0 && value[0] != 0
			}
		})
	})
	return calls
}
