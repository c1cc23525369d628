package cniservice

import (
	"encoding/json"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine"
)

// result is that of all networks of the call's attachment, in the version that is
// asked for.
func (c *call) result() (json.RawMessage, error) {
	r, err := c.backend.Get(c.id())
	if err != nil {
		return nil, err
	}
	if r.Phase != configurator.PhaseReady {
		return nil, fmt.Errorf("allocation %q was changed meanwhile: it is in phase %q", r.ID, r.Phase)
	}
	version := c.conf.CNIVersion
	if len(r.Networks) == 1 && versionOf(r.Networks[0].Result) == version {
		return r.Networks[0].Result, nil
	}
	merged := &types100.Result{CNIVersion: version}
	for _, n := range r.Networks {
		result, err := engine.ParseResult(n.Result)
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", n.Network, err)
		}
		merge(merged, result)
	}
	converted, err := merged.GetAsVersion(version)
	if err != nil {
		return nil, fmt.Errorf("result of allocation %q: %w", r.ID, err)
	}
	return json.Marshal(converted)
}

// merge appends the result of a further network. The resolvers are those of the first
// that names one.
func merge(to, from *types100.Result) {
	offset := len(to.Interfaces)
	to.Interfaces = append(to.Interfaces, from.Interfaces...)
	for _, ip := range from.IPs {
		if ip.Interface != nil {
			ip.Interface = types100.Int(*ip.Interface + offset)
		}
		to.IPs = append(to.IPs, ip)
	}
	to.Routes = append(to.Routes, from.Routes...)
	if len(to.DNS.Nameservers) == 0 {
		to.DNS = from.DNS
	}
}
