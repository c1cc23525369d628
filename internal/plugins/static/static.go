package static

import (
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// static is the plugin with one configuration.
type static struct {
	sdk.Common
	own ipam
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) { return parse(conf) }

// Add returns the addresses. It keeps no state.
func (p *static) Add(_ context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	ips, err := p.addresses(c.Args)
	if err != nil {
		return nil, err
	}
	routes, err := sdk.IPAMRoutes(p.own.Routes)
	if err != nil {
		return nil, err
	}
	return &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		IPs:        ips,
		Routes:     routes,
		DNS:        p.own.DNS,
	}, nil
}

// Check compares the gateways of the addresses with the previous result.
func (p *static) Check(_ context.Context, c *sdk.CmdArgs) error {
	ips, err := p.addresses(c.Args)
	if err != nil {
		return err
	}
	previous, err := c.Previous(&p.Common)
	if err != nil {
		return err
	}
	if previous == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "required prevResult missing", "")
	}
	for _, want := range ips {
		for _, have := range previous.IPs {
			if !want.Address.IP.Equal(have.Address.IP) {
				continue
			}
			if want.Gateway != nil && !want.Gateway.Equal(have.Gateway) {
				return fmt.Errorf("gateway of %s on interface %s is %s, and not %s",
					have.Address.IP, c.IfName, have.Gateway, want.Gateway)
			}
		}
	}
	return nil
}

// Del does nothing, because Add keeps no state.
func (p *static) Del(context.Context, *sdk.CmdArgs) error { return nil }

// Status validates the configuration.
func (p *static) Status(context.Context, *sdk.CmdArgs) error {
	if _, err := p.addresses(""); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "no address is configured", err.Error())
	}
	return nil
}

// Planned implements sdk.Planner.
func (p *static) Planned() (*types100.Result, error) {
	ips, err := p.addresses("")
	if err != nil {
		return nil, err
	}
	routes, err := sdk.IPAMRoutes(p.own.Routes)
	return &types100.Result{IPs: ips, Routes: routes}, err
}

// GC does nothing, because Add keeps no state.
func (p *static) GC(context.Context, *sdk.CmdArgs) error { return nil }
