// Package addresses reads which addresses the networks of a host can lease: the ranges
// that a configuration list gives to host-local, and how many of them are leased.
package addresses

import (
	"encoding/binary"
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
	"github.com/allocnet/allocnet/internal/subnets"
)

// maxLeases bounds the number of files that are counted in one directory.
const maxLeases = 1 << 20

// Usage is the number of addresses of one family that are leased, and that can still be
// leased. They are numbers of IPv6 addresses as well, so they are not integers.
type Usage struct{ Used, Free float64 }

// Stores returns the stores of the leases of a network, one per directory. They are those of
// the plugins whose ranges can be read.
func Stores(n *conflist.Network) (stores []*lease.Store, err error) {
	pools, _ := subnets.Pools(n)
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
	pools, err := subnets.Pools(n)
	if err != nil {
		return nil, err
	}
	return count(n, pools)
}

// CountValid is Count without the plugins whose ranges cannot be read. host-local cannot
// lease for them either, and returns the error.
func CountValid(n *conflist.Network) (map[string]Usage, error) {
	pools, _ := subnets.Pools(n)
	return count(n, pools)
}

func count(n *conflist.Network, pools []subnets.Pool) (map[string]Usage, error) {
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
