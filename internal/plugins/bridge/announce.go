package bridge

import (
	"bytes"
	"context"
	"net"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// rememberedFor is how long allocations remember the MAC of an address. The kernel removes an entry of the neighbour
// table a minute after its last use, but keeps it while there are few entries. A packet that uses such an entry makes the
// kernel find out, within some seconds, that the MAC does not answer.
const rememberedFor = time.Hour

// announce tells the neighbours on the bridge the MAC of the container's addresses, if they may have that of an earlier
// container, to which they would send for up to a minute. The bridge copies each announcement to all its ports. If later
// binaries follow, announce does so before them, and again if they have changed the MAC.
func (a *addition) announce(context.Context) error {
	ips, err := a.remembered()
	if err != nil || len(ips) == 0 {
		return err
	}
	var announced net.HardwareAddr
	if a.Args.Passes() {
		announced = a.veth.PeerMAC
		a.announceMAC(announced, ips)
	}
	a.Args.AtEnd(func(r *types100.Result) {
		if mac, ok := containerMAC(a.Args, r); ok && !bytes.Equal(mac, announced) {
			a.announceMAC(mac, ips)
		}
	})
	return nil
}

// remembered returns the addresses that neighbours may remember with another MAC. On a bridge of the host, they may be
// other machines, such as routers, which remember addresses for hours.
func (a *addition) remembered() ([]net.IP, error) {
	all := veth.IPs(a.Result)
	if len(a.lastUse) == 0 {
		return all, nil
	}
	var used, lately []net.IP
	for i, last := range a.lastUse {
		if !last.IsZero() {
			used = append(used, all[i])
		}
		if time.Since(last) < rememberedFor {
			lately = append(lately, all[i])
		}
	}
	if len(used) == len(lately) {
		return used, nil
	}
	own, err := a.Args.Host.Bridges.Created(a.Bridge, a.link.Index)
	if own {
		return lately, err
	}
	return used, err
}

func (a *addition) announceMAC(mac net.HardwareAddr, ips []net.IP) {
	if err := a.sandbox.Announce(a.veth.PeerIndex, mac, ips...); err != nil {
		a.Args.Host.Log.Warn("neighbours may send to an earlier container with the same address for up to a minute", "container", a.Args.ContainerID, "because", err)
	}
}
