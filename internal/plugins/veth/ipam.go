package veth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// IPAM is the type of the IPAM plugin to which a configuration delegates; ""
// means none.
type IPAM string

// IPAMOf returns the IPAM plugin of a configuration.
func IPAMOf(common *sdk.Common) (IPAM, error) {
	var ipam struct {
		Type string `json:"type"`
	}
	if len(common.IPAM) == 0 {
		return "", nil
	}
	if err := json.Unmarshal(common.IPAM, &ipam); err != nil {
		return "", types.NewError(types.ErrDecodingFailure, "ipam cannot be read", err.Error())
	}
	if ipam.Type == "" {
		return "", nil
	}
	if err := names.ValidatePluginType(ipam.Type); err != nil {
		return "", err
	}
	return IPAM(ipam.Type), nil
}

// Allocate reserves addresses for an attachment to a network. If the IPAM plugin returns none, or
// invalid routes, or, with exclusive, an address that another attachment of the host has, Allocate calls
// Release and fails: with ruleset.ErrAddressTaken for the latter.
func (i IPAM) Allocate(ctx context.Context, c *sdk.CmdArgs, network string, exclusive bool) (*types100.Result, error) {
	r, err := c.Delegate(ctx, "ADD", string(i))
	if err != nil {
		return nil, err
	}
	if len(r.IPs) == 0 {
		err = errors.New("IPAM plugin returned missing IP config")
	} else if err = sdk.ValidateRoutes(r.Routes); err != nil {
		err = fmt.Errorf("result of the IPAM plugin: %w", err)
	} else if exclusive && !(i == hostLocal && c.InProcess(hostLocal)) { // which leases no such address
		err = requireFree(ctx, c, network, r)
	}
	if err != nil {
		return nil, errors.Join(err, i.Release(ctx, c))
	}
	return r, nil
}

// hostLocal is the IPAM plugin whose native one knows which addresses belong to an attachment.
const hostLocal = "host-local"

// requireFree returns ruleset.ErrAddressTaken if another attachment of the host has one of the
// addresses. IPAM plugins such as static assign an address as often as they are asked.
func requireFree(ctx context.Context, c *sdk.CmdArgs, network string, r *types100.Result) error {
	e := &ruleset.Elements{Owner: c.Owner(network)}
	for _, ip := range r.IPs {
		p := prefix(ip.Address)
		e.Masquerade, e.Open, e.Known = append(e.Masquerade, p), append(e.Open, p.Addr()), append(e.Known, p.Addr())
		for _, snat := range []ruleset.SNAT{ruleset.SNATLocal, ruleset.SNATAll} {
			e.Published = append(e.Published, ruleset.Published{Address: p, SNAT: snat})
		}
	}
	if err := c.Host.Rules.RequireFree(ctx, e); !netfilter.IsUnsupported(err) {
		return err
	}
	return nil
}

// Release releases the addresses.
func (i IPAM) Release(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "DEL") }

// Check verifies that the addresses are still reserved for this attachment.
func (i IPAM) Check(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "CHECK") }

// Repair reserves the addresses again whose reservations were lost, if the IPAM plugin can.
func (i IPAM) Repair(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, sdk.Repair) }

// Status reports whether addresses are available.
func (i IPAM) Status(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "STATUS") }

// GC releases the addresses of attachments that no longer exist.
func (i IPAM) GC(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "GC") }

func (i IPAM) do(ctx context.Context, c *sdk.CmdArgs, command string) error {
	if i == "" {
		return nil
	}
	_, err := c.Delegate(ctx, command, string(i))
	return err
}

// DNS returns the DNS settings of the configuration if it has any, otherwise
// those of the IPAM plugin.
func DNS(common *sdk.Common, fromIPAM types.DNS) (types.DNS, error) {
	if len(common.DNS) == 0 {
		return fromIPAM, nil
	}
	var own types.DNS
	if err := json.Unmarshal(common.DNS, &own); err != nil {
		return own, types.NewError(types.ErrDecodingFailure, "dns cannot be read", err.Error())
	}
	if own.Nameservers != nil || own.Search != nil || own.Options != nil || own.Domain != "" {
		return own, nil
	}
	return fromIPAM, nil
}
