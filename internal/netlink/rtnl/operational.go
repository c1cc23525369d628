package rtnl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// AreOperational reports whether links of the host carry traffic: the operational state of all is
// up (RFC 2863), and that of bridge ports in the bridge is forwarding, which takes a while with STP. For
// a bridge that means that it has such a port: without one the kernel drops what the host itself sends
// through the bridge. To ask for the state of a link makes recent kernels update it at once.
func (h *Host) AreOperational(names ...string) (bool, error) {
	up := 0
	var failed error
	err := sock.Build(func(r *sock.Requests) {
		for _, name := range names {
			byName(name)(r)
		}
	}, func(r *sock.Requests) error {
		return h.conns.Exchange(context.Background(), r, func(i int, answer []byte, err error) {
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("find link %q: %w", names[i], err))
				return
			}
			if isOperational(answer) {
				up++
			}
		})
	})
	return up == len(names), errors.Join(err, failed)
}

func isOperational(answer []byte) bool {
	up, forwards := false, true
	sock.EachAttribute(sock.After(unix.SizeofIfInfomsg, answer), func(kind uint16, value []byte) {
		switch kind {
		case unix.IFLA_OPERSTATE:
			up = len(value) > 0 && netlink.LinkOperState(value[0]) == netlink.OperUp
		case unix.IFLA_LINKINFO:
			eachPortSetting(value, func(kind uint16, value []byte) {
				if kind == nl.IFLA_BRPORT_STATE && len(value) == 1 {
					forwards = value[0] == forwardingState
				}
			})
		}
	})
	return up && forwards
}

// ForwardDelay returns how long a bridge of the host waits before it forwards through a new port: two
// forward delays with STP (IEEE 802.1D), and otherwise no time.
func (h *Host) ForwardDelay(bridge string) (delay time.Duration, err error) {
	const hertz = 100 // USER_HZ, the unit of the kernel's times
	stp := false
	err = get(&h.conns, byName(bridge), func(answer []byte) {
		sock.EachAttribute(sock.After(unix.SizeofIfInfomsg, answer), func(kind uint16, info []byte) {
			if kind != unix.IFLA_LINKINFO {
				return
			}
			eachNested(info, nl.IFLA_INFO_DATA, func(kind uint16, value []byte) {
				switch kind {
				case nl.IFLA_BR_FORWARD_DELAY:
					delay = 2 * time.Duration(sock.Uint32(value)) * time.Second / hertz
				case nl.IFLA_BR_STP_STATE:
					stp = sock.Uint32(value) != 0
				}
			})
		})
	})
	if err != nil {
		return 0, fmt.Errorf("find bridge %q: %w", bridge, err)
	}
	if !stp {
		return 0, nil
	}
	return delay, nil
}

// eachNested calls a function for each attribute that is nested in those of a kind.
func eachNested(attributes []byte, outer uint16, each func(kind uint16, value []byte)) {
	sock.EachAttribute(attributes, func(kind uint16, value []byte) {
		if kind == outer {
			sock.EachAttribute(value, each)
		}
	})
}
