// Package loopback is allocnet's native CNI plugin "loopback". It brings up the
// loopback interface.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

const (
	name  = rtnl.LoopbackName
	index = rtnl.Loopback
)

type loopback struct{ sdk.Common }

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	p := &loopback{}
	return p, sdk.Decode(conf, p)
}

// Add brings up the loopback interface. It returns a previous plugin's result
// unchanged.
func (p *loopback) Add(_ context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	sandbox, err := c.Sandbox()
	if err != nil {
		return nil, err
	}
	if err := sandbox.SetUp(index); err != nil {
		return nil, err
	}
	addresses, err := sandbox.Addresses(index)
	if err != nil {
		return nil, err
	}
	previous, err := c.Previous(&p.Common)
	if err != nil || previous != nil {
		return previous, err
	}
	return result(c.Netns, addresses)
}

// result returns a result with the first address of each family.
func result(netns string, addresses []netlink.Addr) (*types100.Result, error) {
	r := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: name, Mac: "00:00:00:00:00:00", Sandbox: netns}},
	}
	var v4, v6 *net.IPNet
	for _, a := range addresses {
		if !a.IP.IsLoopback() {
			return nil, fmt.Errorf("loopback interface has the address %s, which is not a loopback address", a.IP)
		}
		if a.IP.To4() != nil && v4 == nil {
			v4 = a.IPNet
		} else if a.IP.To4() == nil && v6 == nil {
			v6 = a.IPNet
		}
	}
	for _, address := range []*net.IPNet{v4, v6} {
		if address != nil {
			r.IPs = append(r.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: *address})
		}
	}
	return r, nil
}

// Check returns an error if the interface is not up.
func (p *loopback) Check(_ context.Context, c *sdk.CmdArgs) error {
	sandbox, err := c.Sandbox()
	if err != nil {
		return err
	}
	link, err := sandbox.LinkByIndex(index)
	if err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return errors.New("loopback interface is down")
	}
	return nil
}

// Del does not change the interface: it belongs to the namespace, which may be
// attached to another network. Also, bringing it down would wait for RCU while
// the kernel holds its configuration lock (rtnl).
func (p *loopback) Del(context.Context, *sdk.CmdArgs) error { return nil }

// Bind implements sdk.Binder: nothing depends on the request.
func (p *loopback) Bind(context.Context, *sdk.CmdArgs) error { return nil }

// Status always returns nil.
func (p *loopback) Status(context.Context, *sdk.CmdArgs) error { return nil }

// GC does nothing: the interface disappears with its namespace.
func (p *loopback) GC(context.Context, *sdk.CmdArgs) error { return nil }
