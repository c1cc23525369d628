package bench

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clusterTitle names an operation on a host of a cluster with a number of other hosts.
func clusterTitle(operation, kind string, hosts int) string {
	return fmt.Sprintf("%s, %s, %d other hosts", operation, kind, hosts)
}

// cluster measures whether ADD and DEL take longer on a host that has the routes, neighbours
// and forwarding entries of many other hosts, as flanneld makes them for VXLAN.
func (b *bench) cluster(ctx context.Context) error {
	slots, err := b.slots(ctx, spare)
	if err != nil {
		return err
	}
	for _, kind := range b.size.kinds {
		if err := b.clusterOf(ctx, slots, kind); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) clusterOf(ctx context.Context, slots []*slot, kind string) error {
	systems, err := b.openAll(ctx, kind, false, baselineName, nativeName)
	if err != nil {
		return err
	}
	list := inOrder(systems)
	z := rounds{fast: b.size.flatRounds, slow: b.size.flatRounds}
	// Without other hosts twice, so that drift during the measurement affects both sides.
	var measured []map[string]*lives
	for _, hosts := range []int{0, b.size.hosts, 0} {
		b.progress("%s: %d other hosts", kind, hosts)
		of, err := withHosts(hosts, func() (map[string]*lives, error) { return liveTurns(ctx, list, slots, z) })
		if err != nil {
			return errors.Join(err, closeAll(ctx, systems))
		}
		measured = append(measured, of)
	}
	for _, operation := range []string{"ADD", "DEL"} {
		for _, sys := range list {
			of := func(i int) samples { return measured[i][sys.name()].of(operation) }
			b.report.add(clusterTitle(operation, kind, 0), sys.name(), seconds, append(of(0), of(2)...))
			b.report.add(clusterTitle(operation, kind, b.size.hosts), sys.name(), seconds, of(1))
		}
	}
	return closeAll(ctx, systems)
}

// withHosts calls measure on a host that has what flanneld makes for n other hosts. They
// disappear with the tunnel.
func withHosts(n int, measure func() (map[string]*lives, error)) (map[string]*lives, error) {
	tunnel := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1"}, VxlanId: 1, Port: 8472}
	err := netlink.LinkAdd(tunnel)
	if err != nil {
		return nil, fmt.Errorf("make a tunnel: %w", err)
	}
	if err = netlink.LinkSetUp(tunnel); err == nil {
		for i := range n {
			err = errors.Join(err, addHost(tunnel.Index, i))
		}
	}
	var measured map[string]*lives
	if err == nil {
		measured, err = measure()
	}
	return measured, errors.Join(err, netlink.LinkDel(tunnel))
}

// addHost adds the route to the subnet of another host, the neighbour through which it leads,
// and the host behind that neighbour.
func addHost(tunnel, i int) error {
	subnet := net.IPv4(172, 16+byte(i>>8), byte(i), 0)
	mac := net.HardwareAddr{2, 0, 0, 1, byte(i >> 8), byte(i)}
	return errors.Join(
		netlink.NeighAdd(&netlink.Neigh{LinkIndex: tunnel, State: netlink.NUD_PERMANENT, IP: subnet, HardwareAddr: mac}),
		netlink.NeighAppend(&netlink.Neigh{LinkIndex: tunnel, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
			IP: net.IPv4(192, 0, 2+byte(i>>8), byte(i)), HardwareAddr: mac}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: tunnel, Dst: &net.IPNet{IP: subnet, Mask: net.CIDRMask(24, 32)}, Gw: subnet, Flags: int(netlink.FLAG_ONLINK)}),
	)
}
