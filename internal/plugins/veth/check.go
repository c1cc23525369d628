package veth

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// CheckSandbox compares the container's end of the veth with a result: the
// interface, its addresses, its routes and its source rules. It returns the link, also with an error if the link exists.
func CheckSandbox(c *sdk.CmdArgs, r *types100.Result) (netlink.Link, error) {
	i := slices.IndexFunc(r.Interfaces, func(itf *types100.Interface) bool {
		return itf.Name == c.IfName && itf.Sandbox == c.Netns
	})
	if i < 0 || c.Netns == "" {
		return nil, fmt.Errorf("prevResult has no interface %q in %q", c.IfName, c.Netns)
	}
	s, err := c.Sandbox()
	if err != nil {
		return nil, err
	}
	link, err := s.Link(c.IfName)
	if err != nil {
		return nil, fmt.Errorf("find interface %q in the sandbox: %w", c.IfName, err)
	}
	return link, errors.Join(compareLink(link, r.Interfaces[i]), checkAddresses(s, link, i, r), checkRoutes(s, r.Routes), checkSourceRules(s, link, r))
}

func compareLink(link netlink.Link, want *types100.Interface) error {
	attrs := link.Attrs()
	switch {
	case link.Type() != "veth":
		return fmt.Errorf("interface %q is a %s, not a veth", attrs.Name, link.Type())
	case want.Mac != "" && attrs.HardwareAddr.String() != want.Mac:
		return fmt.Errorf("interface %q has the MAC %s, not %s", attrs.Name, attrs.HardwareAddr, want.Mac)
	case attrs.Flags&net.FlagUp == 0:
		return fmt.Errorf("interface %q is down", attrs.Name)
	}
	return nil
}

// CheckHost compares the host's end of the veth with its interface in a result, and returns it.
// It must be the peer of the container's end and have the MAC of the result. If
// master is not 0, it must be a port of that bridge.
func CheckHost(c *sdk.CmdArgs, want *types100.Interface, peer netlink.Link, master int) (netlink.Link, error) {
	link, err := c.Host.Kernel.Link(want.Name)
	if err != nil {
		return nil, fmt.Errorf("find interface %q of the host: %w", want.Name, err)
	}
	if err := compareLink(link, want); err != nil {
		return nil, err
	}
	if link.Attrs().Index != peer.Attrs().ParentIndex || link.Attrs().ParentIndex != peer.Attrs().Index {
		return nil, fmt.Errorf("interface %q of the host is not the other end of %q", want.Name, c.IfName)
	}
	if master != 0 && link.Attrs().MasterIndex != master {
		return nil, fmt.Errorf("interface %q is not a port of the bridge", want.Name)
	}
	return link, nil
}

// checkAddresses returns an error for each address of interface i of the result that
// the link does not have.
func checkAddresses(s *rtnl.Sandbox, link netlink.Link, i int, r *types100.Result) error {
	addresses, err := s.Addresses(link.Attrs().Index)
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range r.IPs {
		if want.Interface != nil && *want.Interface != i {
			continue
		}
		if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IPNet.String() == want.Address.String() }) {
			errs = append(errs, fmt.Errorf("interface %q does not have the address %s", link.Attrs().Name, want.Address.String()))
		}
	}
	return errors.Join(errs...)
}

// checkRoutes returns an error for each route that the sandbox does not have.
func checkRoutes(s *rtnl.Sandbox, routes []*types.Route) error {
	var errs []error
	for _, want := range routes {
		found, err := s.RouteExists(want)
		if err != nil {
			return err
		}
		if !found {
			errs = append(errs, fmt.Errorf("the sandbox has no route to %s", want.Dst.String()))
		}
	}
	return errors.Join(errs...)
}
