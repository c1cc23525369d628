package hostlocal

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// ipam is the plugin's own part of a configuration.
type ipam struct {
	addressRange
	Type       string           `json:"type"`
	Name       string           `json:"name"` // accepted and ignored
	Routes     []*sdk.IPAMRoute `json:"routes"`
	DataDir    string           `json:"dataDir"`
	ResolvConf string           `json:"resolvConf"`
	Ranges     [][]addressRange `json:"ranges"`
	// ReclaimOnBoot makes leases name the boot of the host, and reclaims those of earlier
	// boots. The reference plugin ignores the key.
	ReclaimOnBoot bool `json:"reclaimOnBoot"`
}

type addressRange struct {
	RangeStart net.IP      `json:"rangeStart"`
	RangeEnd   net.IP      `json:"rangeEnd"`
	Subnet     types.IPNet `json:"subnet"`
	Gateway    net.IP      `json:"gateway"`
}

var errNoIPAM = errors.New("the key 'ipam' is missing")

// parse reads a configuration. It ignores unknown keys outside of ipam, which
// belong to the delegating plugin. A plugin returned with an error has the
// directory of the leases, or the reason why that is not known.
func parse(conf []byte) (*hostLocal, error) {
	p := &hostLocal{}
	decodeErr := sdk.DecodeKnown(conf, &p.Common)
	if err := names.ValidateNetwork(p.Name); err != nil {
		return nil, sdk.FirstError(decodeErr, err)
	}
	if len(p.IPAM) == 0 || bytes.Equal(p.IPAM, []byte("null")) {
		p.unplaced = errNoIPAM
		return p, sdk.FirstError(decodeErr, sdk.IPAMError("%w", errNoIPAM))
	}
	var own ipam
	ipamErr := sdk.Decode(p.IPAM, &own)
	p.dataDir, p.unplaced = sdk.DataDir(p.IPAM)
	p.resolvConf, p.reclaims = own.ResolvConf, own.ReclaimOnBoot
	var routesErr, setsErr error
	p.routes, routesErr = sdk.IPAMRoutes(own.Routes)
	p.sets, setsErr = p.rangeSets(own)
	return p, sdk.FirstError(decodeErr, ipamErr, routesErr, setsErr)
}

// rangeSets merges the ranges of runtimeConfig, subnet and ranges, in this
// order.
func (p *hostLocal) rangeSets(own ipam) ([]pool, error) {
	var runtime struct {
		IPRanges [][]addressRange `json:"ipRanges"`
	}
	if err := p.Runtime(&runtime); err != nil {
		return nil, err
	}
	all := runtime.IPRanges
	if own.Subnet.IP != nil {
		all = append(all, []addressRange{own.addressRange})
	}
	all = append(all, own.Ranges...)
	if len(all) == 0 {
		return nil, sdk.NeedsRuntime(sdk.IPAMError("no IP ranges specified"))
	}
	var pools []pool
	v4, v6 := 0, 0
	for i, set := range all {
		next, err := newPool(set)
		if err != nil {
			return nil, sdk.IPAMError("invalid range set %d: %w", i, err)
		}
		for j, other := range pools {
			if other.overlaps(next) {
				return nil, sdk.IPAMError("range set %d overlaps with %d", j, i)
			}
		}
		if next.set[0].First.Is4() {
			v4++
		} else {
			v6++
		}
		pools = append(pools, next)
	}
	if v4 > 1 || v6 > 1 {
		if ok, _ := version.GreaterThanOrEqualTo(p.CNIVersion, "0.3.0"); !ok {
			return nil, sdk.IPAMError("CNI version %v does not support more than 1 address per family", p.CNIVersion)
		}
	}
	return pools, nil
}

// envArgs are the keys of CNI_ARGS.
type envArgs struct {
	types.CommonArgs
	IP types.UnmarshallableString
}

// requested returns the requested addresses of CNI_ARGS, args and
// runtimeConfig, without duplicates.
func (p *hostLocal) requested(args string) ([]netip.Addr, error) {
	var env envArgs
	if err := sdk.LoadArgs(args, &env); err != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS cannot be read", err.Error())
	}
	var text []string
	if env.IP != "" {
		text = append(text, string(env.IP))
	}
	for _, read := range []func(any) error{p.CNIArgs, p.Runtime} {
		var part struct {
			IPs []string `json:"ips"`
		}
		if err := read(&part); err != nil {
			return nil, err
		}
		text = append(text, part.IPs...)
	}
	var addrs []netip.Addr
	for _, s := range text {
		addr, err := parseRequested(s)
		if err != nil {
			return nil, sdk.IPAMError("requested IP: %w", err)
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// parseRequested parses an address, with or without a prefix length.
func parseRequested(s string) (netip.Addr, error) {
	if strings.Contains(s, "/") {
		ip, _, err := net.ParseCIDR(s)
		if err != nil {
			return netip.Addr{}, err
		}
		return toAddr(ip)
	}
	ip := net.ParseIP(s)
	if ip == nil {
		return netip.Addr{}, fmt.Errorf("invalid IP address %s", s)
	}
	return toAddr(ip)
}

// toAddr converts an address and unmaps IPv4 in IPv6.
func toAddr(ip net.IP) (netip.Addr, error) {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return netip.Addr{}, fmt.Errorf("IP %s not v4 nor v6", ip)
	}
	return addr.Unmap(), nil
}
