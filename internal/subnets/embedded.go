package subnets

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/smallfile"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
)

// keptFile is the file of a state directory with the subnets of its embedded network.
const keptFile = "subnets"

// Networks returns the configurations of a directory and the embedded network. If the options name no subnets, the
// embedded network has those that are kept in the state directory. While none are kept, it has those that Keep would
// choose; in a list of all networks, those that it would have chosen some seconds ago: see Pause. Networks itself does not
// look at the host, which takes a second with 10,000 links.
func Networks(confDir string, o conflist.EmbeddedOptions) (*conflist.Dir, error) {
	chosen, kept, err := keptFor(o)
	if err != nil || !kept {
		chosen = first()
	}
	n, err := with(o, chosen)
	if err != nil {
		return nil, err
	}
	dir := conflist.New(confDir, n)
	if kept {
		return dir, nil
	}
	var until time.Time
	dir.Follow(func(fresh bool) (*conflist.Network, bool, error) {
		now, kept, err := keptIn(o.StateDir)
		if err == nil && !kept {
			began := time.Now()
			if !fresh && began.Before(until) {
				return n, false, nil
			}
			now, err = choose(o)
			until = time.Now().Add(Pause(time.Since(began)))
		}
		if err != nil || slices.Equal(now, chosen) {
			return n, kept, err
		}
		next, err := with(o, now)
		if err == nil {
			n, chosen = next, now
		}
		return n, kept, err
	})
	return dir, nil
}

// Embedded returns the embedded network as Networks does.
func Embedded(o conflist.EmbeddedOptions) (*conflist.Network, error) {
	chosen, _, err := choice(o)
	if err != nil {
		return nil, err
	}
	return with(o, chosen)
}

// Choice returns the subnets of the embedded network of Embedded; nil if the options name them.
func Choice(o conflist.EmbeddedOptions) ([]netip.Prefix, error) {
	chosen, _, err := choice(o)
	return chosen, err
}

// with returns the embedded network with chosen subnets, or without any with those of the options.
func with(o conflist.EmbeddedOptions, chosen []netip.Prefix) (*conflist.Network, error) {
	if len(chosen) > 0 {
		o.Subnets = chosen
	}
	return conflist.Embedded(o)
}

// choice returns the subnets that are kept or would be, nil if the options name them, and whether they stay as they
// are.
func choice(o conflist.EmbeddedOptions) (list []netip.Prefix, kept bool, err error) {
	list, kept, err = keptFor(o)
	if err != nil || !kept { // Keep returns the error, when the network is used
		kept = false
		list, err = choose(o)
	}
	return list, kept, err
}

// keptFor returns the subnets that are kept, nil if the options name them, and whether they stay as they are.
func keptFor(o conflist.EmbeddedOptions) (list []netip.Prefix, kept bool, err error) {
	if len(o.Subnets) > 0 || o.SubnetsFrom != "" || !filepath.IsAbs(o.StateDir) {
		return nil, true, nil
	}
	return keptIn(o.StateDir)
}

// Keep writes the subnets of the embedded network into the state directory, unless the options name them or
// they are there already. For each family, they are the first of conflist.EmbeddedSubnets in which the host has
// nothing; if it has something in each, the first in which it would lose nothing, or the first of all.
func Keep(o conflist.EmbeddedOptions) error {
	chosen, kept, err := choice(o)
	if kept || err != nil {
		return err
	}
	if _, _, err := keptIn(o.StateDir); err != nil {
		return err
	}
	data, err := json.Marshal(chosen)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return err
	}
	draft, err := os.CreateTemp(o.StateDir, "."+keptFile+"-")
	if err != nil {
		return err
	}
	_, err = draft.Write(data)
	if err = errors.Join(err, draft.Close()); err == nil {
		err = os.Link(draft.Name(), filepath.Join(o.StateDir, keptFile)) // another process may be choosing
	}
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(draft.Name()))
}

// keptIn returns the subnets that are kept in a state directory. A directory with leases of the embedded
// network and without kept subnets is of an earlier version, which always had the first ones.
func keptIn(stateDir string) (list []netip.Prefix, kept bool, err error) {
	path := filepath.Join(stateDir, keptFile)
	data, err := smallfile.ReadOwn(path, 4<<10)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission): // then this process uses no network either
		if _, err := os.Stat(filepath.Join(stateDir, "leases", conflist.EmbeddedName)); err == nil {
			return first(), true, nil
		}
		return nil, false, nil
	case err == nil:
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, false, fmt.Errorf("subnets of the embedded network: %s: %w; remove the file once the network has no allocation", path, err)
	}
	return list, true, nil
}

// choose returns the subnets that Keep would keep now.
func choose(o conflist.EmbeddedOptions) (list []netip.Prefix, err error) {
	servers, err := NameServers("/etc/resolv.conf")
	if err != nil {
		servers = nil // doctor reports it
	}
	if free, err := hasNothingIn(first(), servers); free || err != nil {
		return first(), err
	}
	taken, err := OfHost(nil)
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		taken = append(taken, Taken{Kind: NextHop, Prefix: netip.PrefixFrom(s, s.BitLen())})
	}
	for _, candidates := range conflist.EmbeddedSubnets {
		list = append(list, firstFree(o, candidates, taken))
	}
	return list, nil
}

// hasNothingIn reports whether the host has no address, route or next hop in some subnets, and they hold none of others. Unlike
// OfHost, it does not list the links, for which the kernel takes time that grows with the square of their number.
func hasNothingIn(list []netip.Prefix, others []netip.Addr) (bool, error) {
	routes, addrs, err := prefixesOfHost()
	if err != nil {
		return false, err
	}
	within := func(p netip.Prefix) bool { return slices.ContainsFunc(list, p.Overlaps) }
	has := func(n *net.IPNet) bool {
		if n == nil {
			return false
		}
		ones, _ := n.Mask.Size()
		ip, ok := netip.AddrFromSlice(n.IP)
		return ok && ones > 0 && within(netip.PrefixFrom(ip.Unmap(), ones)) // a default route takes nothing
	}
	holds := func(ip net.IP) bool {
		a, ok := netip.AddrFromSlice(ip)
		return ok && within(netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
	}
	for _, a := range others {
		if holds(a.AsSlice()) {
			return false, nil
		}
	}
	return !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return has(a.IPNet) }) &&
		!slices.ContainsFunc(routes, func(r netlink.Route) bool {
			return has(r.Dst) || holds(r.Gw) || slices.ContainsFunc(r.MultiPath, func(hop *netlink.NexthopInfo) bool { return holds(hop.Gw) })
		}), nil
}

// firstFree returns the first of some subnets in which the host has nothing, or would lose nothing.
func firstFree(o conflist.EmbeddedOptions, candidates []netip.Prefix, taken []Taken) netip.Prefix {
	loses := make([]bool, len(candidates))
	for i, candidate := range candidates {
		s := Subnet{
			Network: &conflist.Network{Name: conflist.EmbeddedName}, Prefix: candidate, DataDir: filepath.Join(o.StateDir, "leases"),
			Range: lease.Range{Gateway: candidate.Addr().Next()}, Gateway: true,
		}
		if !slices.ContainsFunc(taken, func(t Taken) bool { return t.Prefix.Overlaps(candidate) && !s.IsOwn(t) }) {
			return candidate
		}
		loses[i] = slices.ContainsFunc(taken, s.Covers)
	}
	return candidates[max(0, slices.Index(loses, false))]
}

// first returns the subnets that are chosen on a host that has nothing.
func first() (list []netip.Prefix) {
	for _, candidates := range conflist.EmbeddedSubnets {
		list = append(list, candidates[0])
	}
	return list
}
