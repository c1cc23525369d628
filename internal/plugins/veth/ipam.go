package veth

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// IPAM is the IPAM plugin that a configuration delegates to; none is "".
type IPAM string

// IPAMOf reads which one a configuration names.
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

// Allocate asks for addresses. It makes sure that there is at least one, and
// gives back what came without.
func (i IPAM) Allocate(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	r, err := c.Delegate(ctx, "ADD", string(i))
	if err != nil {
		return nil, err
	}
	if len(r.IPs) == 0 {
		return nil, errors.Join(errors.New("IPAM plugin returned missing IP config"), i.Release(ctx, c))
	}
	return r, nil
}

// Release gives the addresses back.
func (i IPAM) Release(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "DEL") }

// Check asks whether the addresses are still this attachment's.
func (i IPAM) Check(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "CHECK") }

// Status asks whether there are addresses to be had.
func (i IPAM) Status(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "STATUS") }

// GC gives back the addresses of attachments that are no more.
func (i IPAM) GC(ctx context.Context, c *sdk.CmdArgs) error { return i.do(ctx, c, "GC") }

func (i IPAM) do(ctx context.Context, c *sdk.CmdArgs, command string) error {
	if i == "" {
		return nil
	}
	_, err := c.Delegate(ctx, command, string(i))
	return err
}

// DNS is that of the configuration where it has any, else that of the IPAM
// plugin.
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
