package static

import (
	"bytes"
	"net"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// ipam is the plugin's own part of a configuration.
type ipam struct {
	Type      string           `json:"type"`
	Name      string           `json:"name"` // accepted and ignored
	Routes    []*sdk.IPAMRoute `json:"routes"`
	Addresses []*address       `json:"addresses"`
	DNS       types.DNS        `json:"dns"`
}

type address struct {
	Address string `json:"address"`
	Gateway net.IP `json:"gateway"`
	Version string `json:"version"` // accepted and ignored
}

// parse reads a configuration. It ignores unknown keys outside of ipam, which
// belong to the delegating plugin. It does not validate the addresses, because
// DEL does not need them.
func parse(conf []byte) (*static, error) {
	p := &static{}
	if err := sdk.DecodeKnown(conf, &p.Common); err != nil {
		return p, err
	}
	if err := names.ValidateNetwork(p.Name); err != nil {
		return p, err
	}
	if len(p.IPAM) == 0 || bytes.Equal(p.IPAM, []byte("null")) {
		return p, sdk.IPAMError("the key 'ipam' is missing")
	}
	return p, sdk.Decode(p.IPAM, &p.own)
}

// envArgs are the keys of CNI_ARGS.
type envArgs struct {
	types.CommonArgs
	IP, GATEWAY types.UnmarshallableString
}

// addresses returns the addresses of runtimeConfig; if there are none, those of
// args; otherwise those of the configuration followed by those of CNI_ARGS.
func (p *static) addresses(args string) ([]*types100.IPConfig, error) {
	fromEnv, err := environment(args)
	if err != nil {
		return nil, err
	}
	for _, read := range []func(any) error{p.Runtime, p.CNIArgs} {
		var part struct {
			IPs []string `json:"ips"`
		}
		if err := read(&part); err != nil {
			return nil, err
		}
		if len(part.IPs) > 0 {
			ips, err := parseAll(part.IPs)
			if err == nil {
				err = p.countFamilies(ips)
			}
			return ips, err
		}
	}
	var ips []*types100.IPConfig
	for i, a := range p.own.Addresses {
		if a == nil {
			return nil, sdk.IPAMError("address %d is null", i)
		}
		ip, err := parseAddress(a.Address)
		if err != nil {
			return nil, err
		}
		ip.Gateway = a.Gateway
		ips = append(ips, ip)
	}
	ips = append(ips, fromEnv...)
	return ips, p.countFamilies(ips)
}

// environment returns the addresses of CNI_ARGS. Each one gets the last gateway
// that is in its subnet.
func environment(args string) ([]*types100.IPConfig, error) {
	var env envArgs
	if err := sdk.LoadArgs(args, &env); err != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS cannot be read", err.Error())
	}
	ips, err := parseAll(list(env.IP))
	if err != nil {
		return nil, err
	}
	for _, text := range list(env.GATEWAY) {
		gateway := net.ParseIP(text)
		if gateway == nil {
			return nil, sdk.IPAMError("invalid gateway address: %s", text)
		}
		for _, ip := range ips {
			if ip.Address.Contains(gateway) {
				ip.Gateway = gateway
			}
		}
	}
	return ips, nil
}

// list splits a value at its commas.
func list(value types.UnmarshallableString) []string {
	if value == "" {
		return nil
	}
	items := strings.Split(string(value), ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

func parseAll(texts []string) ([]*types100.IPConfig, error) {
	var ips []*types100.IPConfig
	for _, text := range texts {
		ip, err := parseAddress(text)
		if err != nil {
			return nil, err
		}
		ips = append(ips, ip)
	}
	return ips, nil
}

func parseAddress(text string) (*types100.IPConfig, error) {
	ip, subnet, err := net.ParseCIDR(text)
	if err != nil {
		return nil, sdk.IPAMError("an address is expected to be in CIDR notation, got: '%s'", text)
	}
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	return &types100.IPConfig{Address: net.IPNet{IP: ip, Mask: subnet.Mask}}, nil
}

// countFamilies rejects addresses that a result of an old CNI version cannot
// hold.
func (p *static) countFamilies(ips []*types100.IPConfig) error {
	count := map[int]int{}
	for _, ip := range ips {
		count[len(ip.Address.IP)]++
	}
	if count[net.IPv4len] < 2 && count[net.IPv6len] < 2 {
		return nil
	}
	if ok, _ := version.GreaterThanOrEqualTo(p.CNIVersion, "0.3.0"); !ok {
		return sdk.IPAMError("CNI version %v does not support more than 1 address per family", p.CNIVersion)
	}
	return nil
}
