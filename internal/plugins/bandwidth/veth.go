package bandwidth

import (
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

var errNotChained = sdk.Invalid(errors.New("no prevResult: the plugin must come after one that makes an interface"))

// hostEnd returns the host's end of the veth whose other end is the container's
// interface. The result must contain it.
func hostEnd(c *sdk.CmdArgs, result *types100.Result) (netlink.Link, error) {
	if result == nil {
		return nil, errNotChained
	}
	s, err := c.Sandbox()
	if err != nil {
		return nil, err
	}
	inside, err := s.Link(c.IfName)
	if err != nil {
		return nil, fmt.Errorf("find interface %q: %w", c.IfName, err)
	}
	if inside.Attrs().ParentIndex <= 0 {
		return nil, fmt.Errorf("interface %q has no peer", c.IfName)
	}
	host, err := c.Host.Kernel.LinkByIndex(inside.Attrs().ParentIndex)
	if err != nil {
		return nil, fmt.Errorf("find the peer of interface %q on the host: %w", c.IfName, err)
	}
	// The peer may be in a third namespace. Then the index belongs to another
	// link here.
	if host.Type() != "veth" || host.Attrs().ParentIndex != inside.Attrs().Index {
		return nil, fmt.Errorf("the peer of interface %q is not on the host", c.IfName)
	}
	for _, i := range result.Interfaces {
		if i.Sandbox == "" && i.Name == host.Attrs().Name {
			return host, nil
		}
	}
	return nil, fmt.Errorf("veth %q, the peer of interface %q, is not in prevResult", host.Attrs().Name, c.IfName)
}
