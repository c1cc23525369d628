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

// maxLeases bounds the files that are counted in one directory.
const maxLeases = 1 << 20

var errTooMany = errors.New("more files than are counted: give the network a directory (dataDir) of its own")

// leaseCount is of the addresses of one family.
type leaseCount struct{ used, free float64 }

// families are the counts of IPv4 and IPv6.
type families [2]leaseCount

func (f *families) of(addr netip.Addr) *leaseCount {
	if addr.Is4() {
		return &f[0]
	}
	return &f[1]
}

// countLeases reads the directories of one network.
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

// eachLease goes through a directory as host-local leaves it: a file per lease
// that bears the address as its name. It gives up after so many files.
func eachLease(path string, left int, do func(netip.Addr)) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0) // does not wait for a pipe
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was leased yet
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
			// Only one way to write an address is a lease's name.
			if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" && addr.Unmap().String() == name {
				do(addr)
			}
		}
	}
}

// leasable reports whether an address can be leased: as host-local, it asks the
// first range that contains it.
func leasable(ranges []lease.Range, addr netip.Addr) bool {
	i := slices.IndexFunc(ranges, func(r lease.Range) bool { return r.Contains(addr) })
	return i >= 0 && ranges[i].Gateway != addr
}

// size is how many addresses of a range can be leased.
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

// poolsOf are the ranges by data directory, of the plugins that have host-local
// give them addresses. A plugin whose ranges cannot be read has none: it cannot
// lease either, and says why.
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
			if !slices.Contains(pools[dir], r) { // two plugins may share it
				pools[dir] = append(pools[dir], r)
			}
		}
	}
	return pools
}

// subnet is a range as host-local is given it.
type subnet struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart"`
	RangeEnd   netip.Addr   `json:"rangeEnd"`
	Gateway    netip.Addr   `json:"gateway"`
}

// parseRanges reads what a plugin's configuration has for host-local. What is
// wrong with it host-local says in full.
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

var errNoRange = errors.New("no range within it")

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

// orElse is an address that may be left out.
func orElse(addr, or netip.Addr) netip.Addr {
	if addr.IsValid() {
		return addr.Unmap()
	}
	return or
}

// lastOf is the last address of a subnet that is given out by default: all but the
// IPv4 broadcast.
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
