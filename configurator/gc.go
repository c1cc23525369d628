package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// GC takes away every allocation that is not live: those that have a record,
// those that the kernel names as owners of something in the Config's networks
// (also by comments of rules, where a network of the native engine names a
// backend), and those that hold only an address of the embedded network. live must name
// every allocation for which Setup was called and Teardown was not; what is set
// up while GC runs is left alone.
//
// Then it tells the plugins of the Config's networks, and of those that the
// allocations had, by CNI GC (specification 1.1, unless the network disables it)
// which attachments still exist. They remove all others.
//
// Without a record, what a container has stays for which libcni keeps a result in its
// default cache directory, /var/lib/cni: a runtime has it attached, and ends that by
// DEL. It is Kept; Teardown removes it if the runtime is no more. A runtime's ADD that
// has not ended has no such result yet, nor have attachments of runtimes that do not use
// libcni, or use it with another directory. Do not share a network with another runtime
// whose attachments GC should not take. That is so of another Configurator with
// another StateDir as well, where both have a network of the same name whose
// addresses are leased in the same directory (dataDir of host-local): GC of one
// spares what the kernel names as the other's, but takes the leases of what the
// other is just setting up, or runs by plugin binaries, and what rules of a named
// backend tell of allocations without a link, as rules do not name a StateDir.
//
// GC works on several allocations at a time. It goes on after errors and joins
// them, and stops when the context ends; the report tells what was done all the
// same. An allocation whose record cannot be read is such an error: tear it down
// with the path of its network namespace.
//
// Allocations with a Scope are left alone, see GCScope.
func (c *Configurator) GC(ctx context.Context, live []string) (*GCReport, error) {
	return c.GCScope(ctx, Scope{Live: live})
}

// GCScope is GC of the allocations of one scope, and removes nothing else. An
// allocation that has lost its record has lost its scope as well: the scope "" includes it.
//
// CNI GC of a network's plugins removes whatever is not in the list of attachments,
// whoever made it. So the plugins run it for the scope "" and for a runtime that calls
// CNI GC, which says what it has (Attachments), and never for another scope.
func (c *Configurator) GCScope(ctx context.Context, s Scope) (report *GCReport, err error) {
	err = c.operation(ctx, "gc", "", func(ctx context.Context) error {
		report, err = c.gc(ctx, s)
		return err
	})
	return report, err
}

// PlanGC reports what GCScope would do now, and changes nothing: Removed are the
// allocations that it would remove, Kept those that it would keep. The error joins those
// of the allocations that it could not remove, because their records cannot be read.
func (c *Configurator) PlanGC(ctx context.Context, s Scope) (*GCReport, error) {
	_, networksErr := c.scopeNetworks(s)
	known, err := c.known(ctx, s)
	report, errs := &GCReport{Removed: []string{}, Kept: known.live}, []error{networksErr, err}
	before := new(summaries)
	for _, id := range known.dead {
		switch r, stays, err := c.collectable(id, known.began); {
		case err != nil:
			errs = append(errs, about(id, err))
		case stays:
			report.Kept = append(report.Kept, id)
		default:
			report.Removed = append(report.Removed, id)
			before.add(summaryBefore(id, r, known.lost[id]))
		}
	}
	report.Records = before.of(report.Removed)
	report.Destroyed, err = c.planNetns(s, report.Removed)
	return report, errors.Join(append(errs, err)...)
}

func (c *Configurator) gc(ctx context.Context, s Scope) (*GCReport, error) {
	networks, err := c.scopeNetworks(s)
	errs := []error{err}
	known, err := c.known(ctx, s)
	errs = append(errs, err)
	report := &GCReport{Removed: []string{}, Kept: known.live}
	for _, id := range known.live {
		r, err := c.store.Get(id)
		if err == nil {
			networks = append(networks, c.planOf(r).readable()...)
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, about(id, err))
		}
	}
	of, err := c.collectAll(ctx, known, s.DestroyNetns, report)
	networks, errs = append(networks, of...), append(errs, err)
	for _, id := range report.Kept {
		for i := range known.lost[id] {
			s.Attachments = append(s.Attachments, types.GCAttachment{ContainerID: id, IfName: c.cfg.InterfacePrefix + strconv.Itoa(i)})
		}
	}
	if ctx.Err() != nil {
		return report, errors.Join(append(errs, ctx.Err())...)
	}
	if s.Name == "" {
		errs = append(errs, c.store.Sweep(ctx))
	}
	report.Destroyed, err = c.gcNetns(ctx, s, report.Removed)
	errs = append(errs, err)
	if reachesPlugins(s) {
		errs = append(errs, c.gcPlugins(ctx, networks, s))
	}
	return report, errors.Join(errs...)
}

// collectAll takes the dead allocations away, reports what became of them, and returns
// the networks that they had.
func (c *Configurator) collectAll(ctx context.Context, known knownAllocations, destroyNetns bool, report *GCReport) ([]*conflist.Network, error) {
	before := new(summaries)
	var mu sync.Mutex // guards networks and report.Forced
	var networks []*conflist.Network
	collecting := *c // the same configurator, that also tells us what it forced
	collecting.cfg.OnForced = func(id string, removed []Leftover) {
		mu.Lock()
		report.Forced = append(report.Forced, removed...)
		mu.Unlock()
		c.cfg.OnForced(id, removed)
	}
	outcomes := c.each(ctx, known.dead, func(id string) (removed bool, err error) {
		of, removed, err := collecting.collect(ctx, id,
			collection{before: before, lost: known.lost[id], dead: known.dead, began: known.began, destroyNetns: destroyNetns})
		mu.Lock()
		defer mu.Unlock()
		networks = append(networks, of...)
		return removed, err
	})
	var errs []error
	for _, o := range outcomes {
		switch {
		case o.err != nil:
			errs = append(errs, about(o.id, o.err))
		case o.done:
			report.Removed = append(report.Removed, o.id)
		default:
			report.Kept = append(report.Kept, o.id)
		}
	}
	report.Records = before.of(report.Removed)
	return networks, errors.Join(errs...)
}

// knownAllocations are those that GC looks at, sorted. No list is nil.
type knownAllocations struct {
	live, dead []string
	lost       map[string][]string // the networks of those without a record
	began      time.Time           // when GC began to look for them
}

// known are the allocations of a scope that have a record and, with the scope "",
// those that have lost it: by an address of the embedded network, or by what names
// them in the kernel as its owner in one of the Config's, comments of rules where
// the native engine runs it with a named backend.
func (c *Configurator) known(ctx context.Context, s Scope) (knownAllocations, error) {
	k := knownAllocations{live: []string{}, dead: []string{}, began: c.now()}
	ids, lost, err := c.discover(ctx, s)
	k.lost = lost
	for _, id := range ids {
		if slices.Contains(s.Live, id) {
			k.live = append(k.live, id)
		} else {
			k.dead = append(k.dead, id)
		}
	}
	return k, err
}

// discover returns the IDs of the allocations of a scope, sorted, and the networks of
// those without a record.
func (c *Configurator) discover(ctx context.Context, s Scope) (ids []string, lost map[string][]string, err error) {
	ids, containers, err := c.inScope(s.Name)
	if s.Name != "" {
		return ids, nil, err
	}
	errs := []error{err}
	lost = map[string][]string{}
	note := func(network string, owners []string, err error) {
		errs = append(errs, err)
		for _, id := range owners {
			if !containers[id] {
				ids = append(ids, id)
				lost[id] = append(lost[id], network)
			}
		}
	}
	var networks []*conflist.Network
	for _, name := range slices.Concat(s.Networks, c.cfg.Networks) {
		n, err := c.lookup(name) // scopeNetworks has the error
		switch {
		case err == nil:
			networks = append(networks, n)
		case name != "": // its name is all that owners need
			owners, err := cleanup.Owners(ctx, name, c.cfg.StateDir)
			note(name, owners, err)
		}
	}
	if n, err := c.confs.Lookup(conflist.EmbeddedName); err == nil && n.File == "" {
		holders, err := cleanup.Holders(n.Name, n.Bytes)
		note(n.Name, holders, err)
		networks = append(networks, n)
	}
	for _, n := range networks {
		owners, err := cleanup.Owners(ctx, n.Name, c.cfg.StateDir)
		note(n.Name, owners, err)
		if c.engineOf(n) == c.native {
			marked, err := cleanup.Marked(ctx, n.Name, n.Bytes, c.cfg.StateDir)
			note(n.Name, marked, err)
		}
	}
	for id, names := range lost {
		slices.Sort(names)
		lost[id] = slices.Compact(names)
	}
	slices.Sort(ids)
	return slices.Compact(ids), lost, errors.Join(errs...)
}

// inScope are the IDs of the recorded allocations of a scope, and the containers
// of all. One that cannot be read has the scope "", so that its error comes up.
func (c *Configurator) inScope(scope string) (ids []string, containers map[string]bool, err error) {
	all, err := c.store.IDs()
	containers = map[string]bool{}
	for _, id := range all {
		r, err := c.store.Get(id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			r = &record.Record{ID: id}
		}
		containers[r.Container()] = true
		if r.Scope == scope {
			ids = append(ids, id)
		}
	}
	return ids, containers, err
}

// within are the IDs of the recorded allocations that a Repair or Recover looks at. One
// whose record cannot be read has no scope.
func (c *Configurator) within(s Scope) ([]string, error) {
	if s.Name == "" {
		return c.store.IDs()
	}
	ids, _, err := c.inScope(s.Name)
	return ids, err
}

// covers reports whether a Repair or Recover looks at an allocation.
func covers(s Scope, r *record.Record) bool { return s.Name == "" || r.Scope == s.Name }

// reachesPlugins reports whether the plugins run CNI GC: that reaches the attachments
// of all scopes, and of other runtimes.
func reachesPlugins(s Scope) bool { return s.Name == "" || s.Attachments != nil }

// scopeNetworks are the networks whose plugins run CNI GC in any case.
func (c *Configurator) scopeNetworks(s Scope) ([]*conflist.Network, error) {
	networks, err := c.namedNetworks(s.Networks, s.Conflists)
	if s.Name == "" && len(s.Networks) == 0 {
		networks = append(networks, c.configured()...)
	}
	return networks, err
}

// asked are networks by their names, and others by their texts.
func (c *Configurator) namedNetworks(names []string, texts []json.RawMessage) ([]*conflist.Network, error) {
	var networks []*conflist.Network
	var errs []error
	for _, name := range names {
		n, err := c.lookup(name)
		if errs = append(errs, err); err == nil {
			networks = append(networks, n)
		}
	}
	for _, text := range texts {
		n, err := conflist.Parse(text)
		if errs = append(errs, err); err == nil {
			networks = append(networks, n)
		}
	}
	return networks, errors.Join(errs...)
}

// collection holds what collect needs to know about an allocation.
type collection struct {
	lost         []string // the networks of one without a record
	dead         []string // all that are taken away with it
	began        time.Time
	destroyNetns bool
	before       *summaries // what is taken away is noted here
}

// collect takes one allocation away, unless it was set up since GC began, and
// says of which networks it was.
func (c *Configurator) collect(ctx context.Context, id string, how collection) (networks []*conflist.Network, removed bool, err error) {
	if err := validateID(id); err != nil {
		return nil, false, err
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	r, stays, err := c.collectable(id, how.began)
	if err != nil || stays {
		return nil, false, err
	}
	how.before.add(summaryBefore(id, r, how.lost))
	if r == nil {
		err = c.removeUnrecorded(ctx, Allocation{ID: id, Networks: how.lost})
		return nil, err == nil, err
	}
	p := c.planOf(r)
	if how.destroyNetns {
		err = c.noteNetnsForTeardown(Allocation{ID: id}, how.dead...)
	}
	if err == nil || errors.Is(err, ErrInUse) { // the namespace of another program stays
		err = c.remove(ctx, p)
	}
	return p.readable(), err == nil, err
}

// summaryBefore is that of a record, or of an allocation that has lost it.
func summaryBefore(id string, r *record.Record, lost []string) Record {
	if r == nil {
		return summaryOfLost(id, lost)
	}
	return summaryOf(r)
}

// collectable reads the record of an allocation that is not live, nil where it was
// lost. It stays if it was set up since GC began, or if it is a runtime's container. The
// error is that it cannot be taken away by GC.
func (c *Configurator) collectable(id string, began time.Time) (r *record.Record, stays bool, err error) {
	if err := validateID(id); err != nil {
		return nil, false, err
	}
	r, err = c.store.Get(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		stays, err := c.isRuntimes(id)
		return nil, stays, err
	case unreadable(err):
		return nil, false, withoutNetns(err)
	case err != nil:
		return nil, false, err
	}
	return r, c.since(began, r.Created), nil
}

// since reports whether an allocation was made after GC began. One of the future was
// made before the clock was set back, unless that was while GC runs.
func (c *Configurator) since(began, created time.Time) bool {
	now := c.now()
	unmoved := began.Add(now.Sub(began)) // by the monotonic clock
	return created.After(began) && !(created.After(now) && created.After(unmoved))
}

// configured are the networks of the Config. Others in the same directory may be
// another runtime's, whose attachments we do not know.
func (c *Configurator) configured() []*conflist.Network {
	var networks []*conflist.Network
	for _, name := range c.cfg.Networks {
		if n, err := c.lookup(name); err == nil {
			networks = append(networks, n)
		}
	}
	return networks
}

// gcTimeout bounds what GC of the plugins of a network may hold up: no ADD or DEL on
// it may run meanwhile (CNI specification, "GC"). It is the time to wait for those that
// run, and then that of the plugins.
const gcTimeout = 10 * time.Second

// gcPlugins runs CNI GC on the networks that know it; of several with the same
// name, on the last. To those whose configuration is older than that, the native
// plugins would do it all the same, but other runtimes do not expect it.
func (c *Configurator) gcPlugins(ctx context.Context, networks []*conflist.Network, s Scope) error {
	byName := map[string]*conflist.Network{}
	for _, n := range networks {
		if knows, err := version.GreaterThanOrEqualTo(n.List.CNIVersion, "1.1.0"); err == nil && knows && !n.List.DisableGC {
			byName[n.Name] = n
		}
	}
	var errs []error
	// Their order is not the same each time, so that those that hang do not keep it from
	// the same others for ever.
	for name, n := range byName {
		err := ctx.Err()
		if err == nil {
			err = c.gcNetwork(ctx, n, s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("GC of the plugins of network %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// gcNetwork runs GC of one network, beside which nothing happens there.
func (c *Configurator) gcNetwork(ctx context.Context, n *conflist.Network, s Scope) error {
	patient, cancel := context.WithTimeout(ctx, c.gcTimeout)
	defer cancel()
	unlock, err := c.store.LockNetwork(patient, n.Name)
	if err != nil {
		return fmt.Errorf("operations that run did not end in time: %w", err)
	}
	defer unlock()
	records, err := c.store.List()
	if err != nil {
		return err // a list with gaps would have plugins take live attachments away
	}
	attached, dirs := slices.Clone(s.Attachments), []string(nil)
	for _, r := range records {
		for _, a := range r.Attachments {
			if a.Network != n.Name {
				continue
			}
			dirs = append(dirs, r.PluginDirs...)
			attachment := types.GCAttachment{ContainerID: r.Container(), IfName: a.IfName}
			if !slices.Contains(s.Attachments, attachment) {
				attached = append(attached, attachment)
			}
		}
	}
	if s.Name == "" { // no runtime says which attachments it has
		cached, err := runtimesAttachments(n.Name)
		if err != nil {
			return err
		}
		attached = append(attached, cached...)
	}
	dirs = distinct(append(dirs, s.PluginDirs...))
	ctx, cancel = context.WithTimeout(ctx, min(c.gcTimeout, c.cfg.Timeout))
	defer cancel()
	return c.engineOf(n).GC(ctx, c.pluginDirs(dirs, pluginTypes(n)...), n, attached)
}
