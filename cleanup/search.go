package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// A finder looks after one kind of thing.
type finder interface {
	// find looks, remembers and returns. What it learns about addresses serves the finders after it.
	find(ctx context.Context) ([]Leftover, error)
	// remove takes away what find found, and returns what it has taken away.
	remove(ctx context.Context) ([]Leftover, error)
}

// search is one look at the host on behalf of one target.
type search struct {
	target      Target
	attachments []*attachment
	addresses   addresses
	instance    string // of the owners
	instanceErr error

	cache     cacheFinder
	leases    leaseFinder
	links     linkFinder
	elements  elementFinder
	nftables  nftablesFinder
	spoof     spoofFinder
	iptables  iptablesFinder
	sources   sourceFinder
	conntrack conntrackFinder
	backups   backupFinder
}

// attachment is an Attachment as far as it was understood.
type attachment struct {
	Attachment
	scope  scope
	result *current.Result // nil when unknown
}

func newSearch(t Target) *search {
	s := &search{target: t}
	if t.Instance != nil {
		s.instance = *t.Instance
	} else {
		state, err := statedir.Resolve(t.StateDir)
		s.instance, s.instanceErr = state.Instance, err
	}
	for _, a := range t.Attachments {
		s.attachments = append(s.attachments,
			&attachment{Attachment: a, scope: scopeOf(a.Config), result: parseResult(a.Result)})
	}
	for _, a := range t.Addresses {
		s.addresses.addOwn(a.IP, a.Network)
	}
	s.cache.search = s
	s.leases.search = s
	s.links.search = s
	s.elements.search = s
	s.nftables.search = s
	s.iptables = iptablesFinder{search: s, open: openTables, kernel: inKernel}
	s.sources.search = s
	s.conntrack.search = s
	s.spoof.search = s
	s.backups.search = s
	return s
}

// parseResult reads a CNI result of any version; nil when there is none that can be read.
func parseResult(data []byte) *current.Result {
	if len(data) == 0 {
		return nil
	}
	result, err := create.CreateFromBytes(data)
	if err != nil {
		return nil
	}
	converted, err := current.NewResultFromResult(result)
	if err != nil {
		return nil
	}
	return converted
}

// find looks with every finder. The order matters: a cached result stands in for an unknown one, and leases and
// rules tell addresses that later finders look for.
func (s *search) find(ctx context.Context) ([]Leftover, error) {
	return each(ctx, finder.find, &s.cache, &s.leases, &s.links, &s.elements, &s.nftables, &s.spoof, &s.iptables,
		&s.sources, &s.conntrack, &s.backups)
}

// remove takes away what find found. Leases come after everything that bears their address: once a lease is gone,
// the address can be another allocation's. Elements come after the sources of which they tell.
func (s *search) remove(ctx context.Context) ([]Leftover, error) {
	return each(ctx, finder.remove, &s.links, &s.sources, &s.elements, &s.iptables, &s.nftables, &s.spoof, &s.conntrack, &s.backups,
		&s.leases, &s.cache)
}

// flush deletes connection tracking entries only. Rules, which cost the most to list, are consulted only when they
// can make a difference.
func (s *search) flush(ctx context.Context) error {
	_, err := each(ctx, finder.find, &s.cache, &s.leases)
	_, lookErr := s.conntrack.look(ctx)
	err = errors.Join(err, lookErr)
	if s.conntrack.matched || len(s.addresses.own) == 0 {
		_, ruleErr := each(ctx, finder.find, &s.nftables, &s.iptables)
		_, lookErr := s.conntrack.look(ctx)
		err = errors.Join(err, ruleErr, lookErr)
	}
	if !s.conntrack.matched {
		return err
	}
	_, removeErr := s.conntrack.remove(ctx)
	return errors.Join(err, removeErr)
}

// each lets every finder act and joins what they return.
func each(
	ctx context.Context, act func(finder, context.Context) ([]Leftover, error), finders ...finder,
) ([]Leftover, error) {
	var (
		all  []Leftover
		errs []error
	)
	for _, f := range finders {
		if ctx.Err() != nil {
			return all, errors.Join(append(errs, fmt.Errorf("clean up: %w", context.Cause(ctx)))...)
		}
		list, err := act(f, ctx)
		all = append(all, list...)
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// within reports whether any attachment can have left something. With no attachments known, anything can be left.
func (s *search) within(part func(scope) bool) bool {
	return len(s.attachments) == 0 ||
		slices.ContainsFunc(s.attachments, func(a *attachment) bool { return part(a.scope) })
}

// families are the address families that the allocation can have something in.
func (s *search) families() []family {
	known := make(map[family]bool)
	for _, a := range s.attachments {
		if a.result == nil {
			return []family{ipv4, ipv6}
		}
		for _, addr := range resultAddresses(a.result) {
			known[familyOf(addr)] = true
		}
	}
	var list []family
	for _, f := range []family{ipv4, ipv6} {
		if known[f] || len(s.attachments) == 0 {
			list = append(list, f)
		}
	}
	return list
}

// recall takes the addresses of the results that are known.
func (s *search) recall() {
	for _, a := range s.attachments {
		if a.result == nil {
			continue
		}
		for _, addr := range resultAddresses(a.result) {
			s.addresses.addOwn(addr, a.Network)
		}
	}
}

// resultAddresses are the addresses that a result gives to the sandbox.
func resultAddresses(result *current.Result) []netip.Addr {
	var list []netip.Addr
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) && result.Interfaces[*i].Sandbox == "" {
			continue
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			list = append(list, addr.Unmap())
		}
	}
	return list
}

// family is an address family, in the words in which leftovers are reported.
type family string

const (
	ipv4 family = "ipv4"
	ipv6 family = "ipv6"
)

func familyOf(addr netip.Addr) family {
	if addr.Is4() {
		return ipv4
	}
	return ipv6
}

// isFileName guards against names that lead out of a directory.
func isFileName(name string) bool {
	return name != "" && name != "." && name != ".." && name == filepath.Base(name)
}
