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

// A finder finds and removes objects of one kind.
type finder interface {
	// find searches the host, and stores and returns what it finds. Addresses that it
	// learns are used by later finders.
	find(ctx context.Context) ([]Leftover, error)
	// remove removes the objects that find has found, and returns the removed ones.
	remove(ctx context.Context) ([]Leftover, error)
}

// search is a search for the leftovers of one target.
type search struct {
	target      Target
	attachments []*attachment
	addresses   addresses
	instance    string // in the owners of the target's objects
	instanceErr error

	cache     cacheFinder
	leases    leaseFinder
	links     linkFinder
	elements  elementFinder
	nftables  nftablesFinder
	spoof     spoofFinder
	iptables  iptablesFinder
	sources   sourceFinder
	routes    routeFinder
	conntrack conntrackFinder
	backups   backupFinder
}

// attachment is an Attachment with its parsed configuration and result.
type attachment struct {
	Attachment
	scope  scope
	result *current.Result // nil if unknown
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
	s.routes.search = s
	s.conntrack.search = s
	s.spoof.search = s
	s.backups.search = s
	return s
}

// parseResult parses a CNI result of any version. It returns nil for no result or an
// invalid one.
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

// find runs all finders. The order matters: a cached result replaces an unknown one,
// and leases and rules contain addresses for which later finders search.
func (s *search) find(ctx context.Context) ([]Leftover, error) {
	return each(ctx, finder.find, &s.cache, &s.leases, &s.links, &s.elements, &s.nftables, &s.spoof, &s.iptables,
		&s.sources, &s.routes, &s.conntrack, &s.backups)
}

// remove removes what find has found. Leases are released after all objects with their
// address are removed, because another allocation can get the address then. Elements
// are removed after the firewalld sources and the routes, because they identify them.
func (s *search) remove(ctx context.Context) ([]Leftover, error) {
	return each(ctx, finder.remove, &s.links, &s.sources, &s.routes, &s.elements, &s.iptables, &s.nftables, &s.spoof, &s.conntrack, &s.backups,
		&s.leases, &s.cache)
}

// flush only deletes connection tracking entries. Listing rules is the most expensive
// step, so it lists them only if they can change the result.
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

// each calls act for all finders and joins the results.
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

// within reports whether an attachment can have left objects of some kind. If no
// attachment is known, it returns true.
func (s *search) within(part func(scope) bool) bool {
	return len(s.attachments) == 0 ||
		slices.ContainsFunc(s.attachments, func(a *attachment) bool { return part(a.scope) })
}

// families returns the address families in which the allocation can have objects.
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

// addResultAddresses records the addresses of the known results.
func (s *search) addResultAddresses() {
	for _, a := range s.attachments {
		if a.result == nil {
			continue
		}
		for _, addr := range resultAddresses(a.result) {
			s.addresses.addOwn(addr, a.Network)
		}
	}
}

// resultAddresses returns the addresses that a result assigns to interfaces in the
// sandbox.
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

// family is an address family, as named in leftovers.
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

// isFileName reports whether a name is a single path element other than "." and "..".
func isFileName(name string) bool {
	return name != "" && name != "." && name != ".." && name == filepath.Base(name)
}
