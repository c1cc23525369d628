// Package addresses reads which addresses the networks of a host can lease: the ranges
// that a configuration list gives to host-local, and how many of them are leased.
package addresses

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/subnetenv"
)

// maxLeases bounds the number of files that are counted in one directory.
const maxLeases = 1 << 20

// Pool is a range of addresses that a plugin of a network leases with host-local.
type Pool struct {
	Plugin  string       // type of the plugin with the IPAM configuration
	DataDir string       // as configured, or host-local's default
	Subnet  netip.Prefix // masked
	Range   lease.Range
}

// Usage is the number of addresses of one family that are leased, and that can still be
// leased. They are numbers of IPv6 addresses as well, so they are not integers.
type Usage struct{ Used, Free float64 }

// Pools returns the ranges of all plugins of a network that use host-local, in the order
// of the configuration. The error joins those of plugins whose ranges cannot be read;
// host-local cannot lease for them either.
func Pools(n *conflist.Network) (pools []Pool, err error) {
	var errs []error
	for _, p := range n.List.Plugins {
		if p.Network.IPAM.Type != "host-local" || p.Network.Type == subnetenv.Type { // flannel adds the ranges
			continue
		}
		found, err := poolsOf(p.Network.Type, p.Bytes)
		if err != nil {
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

// Stores returns the stores of the leases of a network, one per directory. They are those of
// the plugins whose ranges can be read.
func Stores(n *conflist.Network) (stores []*lease.Store, err error) {
	pools, _ := Pools(n)
	var errs []error
	for _, p := range pools {
		s, err := lease.Open(p.DataDir, n.Name)
		errs = append(errs, err)
		if err == nil && !slices.ContainsFunc(stores, func(other *lease.Store) bool { return other.Dir() == s.Dir() }) {
			stores = append(stores, s)
		}
	}
	return stores, errors.Join(errs...)
}

// Count counts the leases of a network in its directories, by family: "ipv4" and "ipv6".
// A family without addresses is missing.
func Count(n *conflist.Network) (map[string]Usage, error) {
	pools, err := Pools(n)
	if err != nil {
		return nil, err
	}
	return count(n, pools)
}

// CountValid is Count without the plugins whose ranges cannot be read. host-local cannot
// lease for them either, and returns the error.
func CountValid(n *conflist.Network) (map[string]Usage, error) {
	pools, _ := Pools(n)
	return count(n, pools)
}

func count(n *conflist.Network, pools []Pool) (map[string]Usage, error) {
	counts, dirs := map[string]Usage{}, map[string][]lease.Range{}
	for _, p := range pools {
		u := counts[family(p.Range.First)]
		u.Free += size(p.Range)
		counts[family(p.Range.First)] = u
		dirs[p.DataDir] = append(dirs[p.DataDir], p.Range)
	}
	for dir, ranges := range dirs {
		err := eachLease(filepath.Join(dir, n.Name), maxLeases, func(addr netip.Addr) {
			u := counts[family(addr)]
			u.Used++
			if leasable(ranges, addr) {
				u.Free--
			}
			counts[family(addr)] = u
		})
		if err != nil {
			return nil, fmt.Errorf("count leases of network %q: %w", n.Name, err)
		}
	}
	return counts, nil
}

func family(addr netip.Addr) string {
	if addr.Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// subnet is a range in the configuration of host-local.
type subnet struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart"`
	RangeEnd   netip.Addr   `json:"rangeEnd"`
	Gateway    netip.Addr   `json:"gateway"`
}

func poolsOf(plugin string, conf []byte) (pools []Pool, err error) {
	var c struct {
		IPAM struct {
			subnet
			DataDir string     `json:"dataDir"`
			Ranges  [][]subnet `json:"ranges"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(conf, &c); err != nil {
		return nil, fmt.Errorf("read the ipam part: %w", err)
	}
	subnets := slices.Concat(c.IPAM.Ranges...)
	if c.IPAM.Subnet.IsValid() {
		subnets = append(subnets, c.IPAM.subnet)
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

// errNoRange is the error for a subnet without a valid range.
var errNoRange = errors.New("it has no range of addresses to lease: correct subnet, rangeStart and rangeEnd")

// leaseRange returns the range of a subnet, with host-local's defaults.
func (s subnet) leaseRange() (lease.Range, error) {
	net := s.Subnet.Masked()
	if !net.IsValid() || net.Bits() > net.Addr().BitLen()-2 {
		return lease.Range{}, errNoRange
	}
	r := lease.Range{
		First:   orElse(s.RangeStart, net.Addr().Next()),
		Last:    orElse(s.RangeEnd, lastOf(net)),
		Gateway: orElse(s.Gateway, net.Addr().Next()),
	}
	if !net.Contains(r.First) || !net.Contains(r.Last) || r.Last.Less(r.First) {
		return lease.Range{}, errNoRange
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

// size returns the number of addresses in a range that can be leased.
func size(r lease.Range) float64 {
	first, last := r.First.As16(), r.Last.As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
	high, _ := bits.Sub64(binary.BigEndian.Uint64(last[:8]), binary.BigEndian.Uint64(first[:8]), borrow)
	n := math.Ldexp(float64(high), 64) + float64(low) + 1
	if r.Contains(r.Gateway) {
		n--
	}
	return n
}

// leasable reports whether host-local can lease an address. As in host-local, the first
// range that contains the address decides.
func leasable(ranges []lease.Range, addr netip.Addr) bool {
	i := slices.IndexFunc(ranges, func(r lease.Range) bool { return r.Contains(addr) })
	return i >= 0 && ranges[i].Gateway != addr
}

var errTooMany = errors.New("more files than are counted: give the network a directory (dataDir) of its own")

// eachLease calls do for each lease in a directory of host-local: a file whose name is the
// canonical form of the address. It returns errTooMany if there are more files than left.
func eachLease(path string, left int, do func(netip.Addr)) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0) // does not wait for a pipe
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no lease yet
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if left -= len(names); left < 0 {
			return errTooMany
		}
		for _, name := range names {
			if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" && addr.Unmap().String() == name {
				do(addr)
			}
		}
	}
}
