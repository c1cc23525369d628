package telemetry

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
)

// maxLeases bounds the number of files that are counted in one directory.
const maxLeases = 1 << 20

var errTooMany = errors.New("more files than are counted: give the network a directory (dataDir) of its own")

// leaseCount holds the counts of one address family.
type leaseCount struct{ used, free float64 }

// families holds the counts of IPv4 and of IPv6.
type families [2]leaseCount

// of returns the count of the address's family.
func (f *families) of(addr netip.Addr) *leaseCount {
	if addr.Is4() {
		return &f[0]
	}
	return &f[1]
}

// countLeases counts the leases of one network in its directories.
func countLeases(n *conflist.Network) (counts families, err error) {
	for dir, ranges := range poolsOf(n) {
		for _, r := range ranges {
			counts.of(r.First).free += size(r)
		}
		err := eachLease(filepath.Join(dir, n.Name), maxLeases, func(addr netip.Addr) {
			c := counts.of(addr)
			c.used++
			if leasable(ranges, addr) {
				c.free--
			}
		})
		if err != nil {
			return families{}, err
		}
	}
	return counts, nil
}

// eachLease calls do for each lease in a directory of host-local: each lease is a file
// whose name is the address. It returns errTooMany if the directory has more than left
// files.
func eachLease(path string, left int, do func(netip.Addr)) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0) // O_DIRECTORY does not wait for a pipe
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
			// Only the canonical form of an address is the name of a lease.
			if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" && addr.Unmap().String() == name {
				do(addr)
			}
		}
	}
}

// leasable reports whether host-local can lease an address. As in host-local, the first
// range that contains the address decides.
func leasable(ranges []lease.Range, addr netip.Addr) bool {
	i := slices.IndexFunc(ranges, func(r lease.Range) bool { return r.Contains(addr) })
	return i >= 0 && ranges[i].Gateway != addr
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

// poolsOf returns the ranges of the plugins that use host-local, by data directory. A
// plugin whose ranges cannot be read is skipped: host-local cannot lease for it either,
// and returns the error.
func poolsOf(n *conflist.Network) map[string][]lease.Range {
	pools := map[string][]lease.Range{}
	for _, p := range n.List.Plugins {
		if p.Network.IPAM.Type != "host-local" {
			continue
		}
		dir, ranges, err := parseRanges(p.Bytes)
		if err != nil {
			continue
		}
		for _, r := range ranges {
			if !slices.Contains(pools[dir], r) { // two plugins may share a range
				pools[dir] = append(pools[dir], r)
			}
		}
	}
	return pools
}

// subnet is a range in the configuration of host-local.
type subnet struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart"`
	RangeEnd   netip.Addr   `json:"rangeEnd"`
	Gateway    netip.Addr   `json:"gateway"`
}

// parseRanges reads the configuration of host-local from a plugin's configuration. It
// does not describe errors in detail, as host-local does.
func parseRanges(conf []byte) (dataDir string, ranges []lease.Range, err error) {
	var c struct {
		IPAM struct {
			subnet
			DataDir string     `json:"dataDir"`
			Ranges  [][]subnet `json:"ranges"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(conf, &c); err != nil {
		return "", nil, fmt.Errorf("read the ipam part: %w", err)
	}
	subnets := slices.Concat(c.IPAM.Ranges...)
	if c.IPAM.Subnet.IsValid() {
		subnets = append(subnets, c.IPAM.subnet)
	}
	for _, s := range subnets {
		r, err := s.parse()
		if err != nil {
			return "", nil, fmt.Errorf("subnet %s: %w", s.Subnet, err)
		}
		ranges = append(ranges, r)
	}
	if c.IPAM.DataDir == "" {
		c.IPAM.DataDir = lease.DefaultDataDir
	}
	return c.IPAM.DataDir, ranges, nil
}

// errNoRange is the error for a subnet without a valid range.
var errNoRange = errors.New("no range within it")

// parse returns the range of a subnet, with host-local's defaults.
func (s subnet) parse() (lease.Range, error) {
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

// orElse returns addr, or or if addr is not set.
func orElse(addr, or netip.Addr) netip.Addr {
	if addr.IsValid() {
		return addr.Unmap()
	}
	return or
}

// lastOf returns the default end of the range in a subnet: the last address, except the
// IPv4 broadcast address.
func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().AsSlice()
	for i := subnet.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	if addr.Is4() {
		return addr.Prev()
	}
	return addr
}
