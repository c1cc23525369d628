package subnets

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/subnetenv"
)

// Pool is a range of addresses that a plugin of a network leases with host-local.
type Pool struct {
	Plugin  string       // type of the plugin with the IPAM configuration
	DataDir string       // as configured, or host-local's default
	Subnet  netip.Prefix // masked
	Range   lease.Range
}

// Pools returns the ranges of all plugins of a network that use host-local, in the order
// of the configuration. The error joins those of the plugins bridge and ptp whose ranges cannot be read;
// host-local cannot lease for them either. Other plugins may replace texts such as "usePodCidr" before they
// run host-local, so what cannot be read of theirs is left out.
func Pools(n *conflist.Network) (pools []Pool, err error) {
	var errs []error
	for _, p := range n.List.Plugins {
		if p.Network.IPAM.Type != "host-local" || p.Network.Type == subnetenv.Type { // flannel adds the ranges
			continue
		}
		found, err := poolsOf(p.Network.Type, p.Bytes)
		if err != nil && (p.Network.Type == "bridge" || p.Network.Type == "ptp") {
			errs = append(errs, fmt.Errorf("network %q: plugin %q: %w", n.Name, p.Network.Type, err))
		}
		for _, f := range found {
			if !slices.ContainsFunc(pools, func(p Pool) bool { return p.DataDir == f.DataDir && p.Range == f.Range }) {
				pools = append(pools, f)
			}
		}
	}
	return pools, errors.Join(errs...)
}

// addressRange is a range in the configuration of host-local.
type addressRange struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart"`
	RangeEnd   netip.Addr   `json:"rangeEnd"`
	Gateway    netip.Addr   `json:"gateway"`
}

func poolsOf(plugin string, conf []byte) (pools []Pool, err error) {
	var c struct {
		IPAM struct {
			addressRange
			DataDir string           `json:"dataDir"`
			Ranges  [][]addressRange `json:"ranges"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(conf, &c); err != nil {
		return nil, fmt.Errorf("read the ipam part: %w", err)
	}
	subnets := slices.Concat(c.IPAM.Ranges...)
	if c.IPAM.Subnet.IsValid() {
		subnets = append(subnets, c.IPAM.addressRange)
	}
	if c.IPAM.DataDir == "" {
		c.IPAM.DataDir = lease.DefaultDataDir
	}
	var errs []error
	for _, s := range subnets {
		r, err := s.leaseRange()
		if err != nil {
			errs = append(errs, fmt.Errorf("subnet %s: %w", s.Subnet, err))
			continue
		}
		pools = append(pools, Pool{Plugin: plugin, DataDir: c.IPAM.DataDir, Subnet: s.Subnet.Masked(), Range: r})
	}
	return pools, errors.Join(errs...)
}

// ErrNoRange is the error of a subnet without a valid range.
var ErrNoRange = errors.New("it has no range of addresses to lease: correct subnet, rangeStart and rangeEnd")

// leaseRange returns the range of a subnet, with host-local's defaults.
func (s addressRange) leaseRange() (lease.Range, error) {
	net := s.Subnet.Masked()
	if !net.IsValid() || net.Bits() > net.Addr().BitLen()-2 {
		return lease.Range{}, ErrNoRange
	}
	r := lease.Range{
		First:   orElse(s.RangeStart, net.Addr().Next()),
		Last:    orElse(s.RangeEnd, lastOf(net)),
		Gateway: orElse(s.Gateway, net.Addr().Next()),
	}
	if !net.Contains(r.First) || !net.Contains(r.Last) || r.Last.Less(r.First) {
		return lease.Range{}, ErrNoRange
	}
	return r, nil
}

// lastOf returns the last address that host-local leases by default: IPv4's broadcast
// address is not leased.
func lastOf(net netip.Prefix) netip.Addr {
	bytes := net.Addr().AsSlice()
	for i := net.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	if last.Is4() {
		last = last.Prev()
	}
	return last
}

func orElse(addr, or netip.Addr) netip.Addr {
	if addr.IsValid() {
		return addr.Unmap()
	}
	return or
}
