// Package ptp is allocnet's native CNI plugin "ptp". It connects the container
// to the host with a veth, without a bridge, and routes all traffic over it.
package ptp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// config has the reference plugin's keys.
type config struct {
	sdk.Common
	IPMasq        bool    `json:"ipMasq"`
	IPMasqBackend *string `json:"ipMasqBackend"`
	// IPMasqExcept are networks to which the plugin does not masquerade. The
	// reference plugin ignores the key.
	IPMasqExcept []netip.Prefix `json:"ipMasqExcept"`
	MTU          int            `json:"mtu"`
	// SourceGuard drops packets from the container whose source is not its own; default
	// true. The reference plugin ignores the key.
	SourceGuard *bool `json:"sourceGuard"`
	// Fragments false drops fragments of IP packets from the container; default true. The reference
	// plugin ignores the key.
	Fragments *bool `json:"fragments"`
}

// ptp is the plugin.
type ptp struct {
	config
	veth.Verbs
}

var _ sdk.Restorer = (*ptp)(nil)

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	p := &ptp{}
	decodeErr := sdk.Decode(conf, &p.config)
	unread := decodeErr != nil && !sdk.IsUnknownKey(decodeErr)
	p.MTU = max(p.MTU, 0) // the reference plugin ignores a negative MTU, too
	p.Keys, p.Compile = &p.Common, p.compile
	p.Rules = veth.Rules{Network: p.Name, Unfragmented: unread || p.dropsFragments(), Masquerade: veth.Masquerade{
		On: unread || p.IPMasq, Backend: p.IPMasqBackend, Network: p.Name, Except: p.IPMasqExcept,
	}}
	var ipamErr error
	p.IPAM, ipamErr = veth.IPAMOf(&p.Common)
	return p, sdk.FirstError(decodeErr, ipamErr, p.Rules.Masquerade.ValidateExcept(), veth.ValidateMTU(p.MTU))
}

func (p *ptp) guardsSources() bool { return p.SourceGuard == nil || *p.SourceGuard }

func (p *ptp) dropsFragments() bool { return p.Fragments != nil && !*p.Fragments }

var errNoIPAM = sdk.Invalid(errors.New("an IPAM plugin is needed: the configuration has no ipam.type"))

// Validate implements sdk.Validator.
func (p *ptp) Validate(planned *types100.Result) error {
	switch {
	case p.IPAM == "":
		return errNoIPAM
	case planned != nil:
		return errors.Join(p.Rules.Masquerade.Validate(), requireGateways(planned), veth.DistinctRoutes(planned))
	}
	return p.Rules.Masquerade.Validate()
}

// requireGateways fails for an address without a gateway, because the plugin routes through gateways.
func requireGateways(r *types100.Result) error {
	for _, ip := range r.IPs {
		if ip.Gateway == nil {
			return fmt.Errorf("the IPAM plugin returned no gateway for %s", ip.Address.String())
		}
	}
	return nil
}

// Status implements sdk.Plugin.
func (p *ptp) Status(ctx context.Context, c *sdk.CmdArgs) error {
	if p.IPAM == "" {
		return errNoIPAM
	}
	return p.Verbs.Status(ctx, c)
}
