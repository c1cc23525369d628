package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// GC tears down every allocation that is not live. live must contain the ID of every
// allocation for which Setup was called and Teardown was not. GC keeps allocations that are
// set up while it runs, and allocations with a Scope; see GCScope.
//
// GC finds allocations by their records. It also finds allocations that have lost their
// record, by objects in the networks of the Config that name their owner: links, elements
// and, if a network of the native engine selects an iptables or nftables backend, comments
// of rules. In the embedded network, it also finds them by leases.
//
// GC then runs CNI GC (specification 1.1) of the plugins of the Config's networks and of the
// networks of the allocations, unless a network disables it. It passes the attachments that
// still exist; the plugins remove all others.
//
// # Networks that other programs use
//
// A container without a record belongs to a runtime if libcni has a cached result of it in
// /var/lib/cni, its default directory. GC keeps such a container and lists it as Kept; the
// runtime removes it by DEL. If the runtime is gone, use Teardown. GC cannot recognise other
// containers of runtimes: those whose ADD is still running, and those of runtimes that use
// another cache directory or no libcni. Do not share a network with such a runtime.
//
// The same applies to another Configurator with another StateDir, if both have a network of
// the same name with leases in the same directory (dataDir of host-local). GC keeps objects
// that name the other StateDir in the kernel. It may remove leases of allocations that the
// other Configurator is setting up or runs through plugin binaries, and rules of allocations
// without a link, because comments of rules do not name a StateDir.
//
// # Errors
//
// GC works on several allocations at a time, continues after errors and joins them. It stops
// when the context ends. It returns the report with an error, too. A record that cannot be
// read is an error; Teardown with the path of the network namespace removes that allocation.
func (c *Configurator) GC(ctx context.Context, live []string) (*GCReport, error) {
	return c.GCScope(ctx, Scope{Live: live})
}

// GCScope is GC of the allocations of one scope. It removes no allocation of another scope.
// An allocation that has lost its record belongs to the scope "". What the pools of ended
// processes have left belongs to every scope.
//
// CNI GC removes every attachment that is not in the list, also those of other programs. GCScope
// therefore runs it only for the scope "", and if Scope.Attachments has the list of a runtime
// that calls CNI GC.
func (c *Configurator) GCScope(ctx context.Context, s Scope) (report *GCReport, err error) {
	err = c.operation(ctx, "gc", "", func(ctx context.Context) error {
		report = &GCReport{Removed: []string{}, Kept: []string{}}
		if err := validateLive(s.Live); err != nil {
			return err
		}
		report, err = c.gc(ctx, s)
		return errors.Join(err, c.setBackSwitches())
	})
	return report, err
}

// validateLive returns ErrInvalidAllocation for a list with an ID that no allocation can have: the ID that
// was meant would not be live.
func validateLive(live []string) error {
	for i, id := range live {
		if err := names.ValidateContainer(id); err != nil {
			return fmt.Errorf("%w: live allocation %d of %d: %w", ErrInvalidAllocation, i+1, len(live), err)
		}
	}
	return nil
}

// PlanGC reports what GCScope would do now, and changes nothing. Removed are the allocations
// that GCScope would remove, Kept those that it would keep. The error joins the errors of
// allocations that GCScope could not remove because their records cannot be read.
func (c *Configurator) PlanGC(ctx context.Context, s Scope) (*GCReport, error) {
	if err := validateLive(s.Live); err != nil {
		return &GCReport{Removed: []string{}, Kept: []string{}}, err
	}
	_, networksErr := c.scopeNetworks(s)
	known, err := c.known(ctx, s)
	report, errs := &GCReport{Removed: []string{}, Kept: known.live}, []error{networksErr, err}
	before := new(summaries)
	for _, id := range known.dead {
		switch r, stays, err := c.collectable(id, s, known.began); {
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
	report.Destroyed, err = c.netns.PlanGC(s, report.Removed)
	return report, errors.Join(append(errs, err)...)
}

func (c *Configurator) gc(ctx context.Context, s Scope) (*GCReport, error) {
	c.backlog.settle(ctx, 0) // these allocations are torn down already
	networks, err := c.scopeNetworks(s)
	errs := []error{err}
	known, err := c.known(ctx, s)
	errs = append(errs, err)
	report := &GCReport{Removed: []string{}, Kept: known.live}
	for _, id := range known.live {
		r, err := c.store.Get(id)
		if err == nil {
			networks = append(networks, c.planOf(r).Readable()...)
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, about(id, err))
		}
	}
	of, err := c.collectAll(ctx, known, s, report)
	networks, errs = append(networks, of...), append(errs, err)
	for _, id := range report.Kept {
		// If only a lease is left of an allocation without a record, it does not name the interface.
		for i := range known.lost[id] {
			s.Attachments = append(s.Attachments, types.GCAttachment{ContainerID: id, IfName: c.cfg.InterfacePrefix + strconv.Itoa(i)})
		}
	}
	if ctx.Err() != nil {
		return report, errors.Join(append(errs, ctx.Err())...)
	}
	if s.Name == "" {
		errs = append(errs, c.store.Sweep(ctx), c.sweepPolicies(ctx, slices.Concat([]string{}, s.Live, report.Kept)))
	} else {
		errs = append(errs, c.store.SweepPools())
	}
	report.Destroyed, err = c.netns.GC(ctx, s, report.Removed)
	errs = append(errs, err)
	if reachesPlugins(s) {
		errs = append(errs, c.gcPlugins(ctx, networks, s, slices.Concat(s.Live, report.Kept)))
	}
	return report, errors.Join(errs...)
}

// collectAll removes the dead allocations, adds the results to the report, and returns their
// networks.
func (c *Configurator) collectAll(ctx context.Context, known knownAllocations, s Scope, report *GCReport) ([]*conflist.Network, error) {
	before := new(summaries)
	var mu sync.Mutex // guards networks and report.Forced
	var networks []*conflist.Network
	ctx = context.WithValue(ctx, forcedKey{}, func(removed []Leftover) {
		mu.Lock()
		defer mu.Unlock()
		report.Forced = append(report.Forced, removed...)
	})
	outcomes := each(ctx, c.concurrency, known.dead, func(id string) (removed bool, err error) {
		of, removed, err := c.collect(ctx, id,
			collection{before: before, lost: known.lost[id], dead: known.dead, began: known.began, scope: s})
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

// knownAllocations are the allocations that GC considers, sorted. No list is nil.
type knownAllocations struct {
	live, dead []string
	lost       map[string][]string // the networks of allocations without a record, by ID
	began      time.Time           // when the search for them began
}

// known returns the allocations of a scope that have a record and, for the scope "", those
// that have lost it; see discover.
func (c *Configurator) known(ctx context.Context, s Scope) (knownAllocations, error) {
	k := knownAllocations{live: []string{}, dead: []string{}, began: c.now()}
	ids, lost, err := c.discover(ctx, s)
	k.lost = lost
	live, liveErr := c.withContainers(s.Live, lost)
	for _, id := range ids {
		if slices.Contains(live, id) {
			k.live = append(k.live, id)
		} else {
			k.dead = append(k.dead, id)
		}
	}
	return k, errors.Join(err, liveErr)
}

// withContainers adds to the IDs of live allocations the IDs under which discover has found those of them
// that have lost their record: those of their containers, which the store of policies has. With an error it
// adds all that have lost their record.
func (c *Configurator) withContainers(live []string, lost map[string][]string) ([]string, error) {
	if len(lost) == 0 {
		return live, nil
	}
	members, err := c.policies.Members("")
	if err != nil {
		return slices.AppendSeq(slices.Clone(live), maps.Keys(lost)), err
	}
	all := slices.Clone(live)
	for _, m := range members {
		if lost[m.Owner.ID] != nil && slices.Contains(live, m.Allocation) {
			all = append(all, m.Owner.ID)
		}
	}
	return all, nil
}

// discover returns the IDs of the allocations of a scope, sorted, and the networks of those
// without a record. It finds the latter by leases of the embedded network, by the owners of
// objects in the kernel, and by comments of rules in networks of the native engine.
func (c *Configurator) discover(ctx context.Context, s Scope) (ids []string, lost map[string][]string, err error) {
	ids, containers, err := c.inScope(s.Name)
	if s.Name != "" {
		return ids, nil, err
	}
	errs := []error{err}
	lost = map[string][]string{}
	allocationOf := c.allocationsOfOwners()
	note := func(network string, owners []string, err error) {
		errs = append(errs, err)
		for _, owner := range owners {
			if !containers[owner] {
				id := allocationOf(owner)
				ids = append(ids, id)
				lost[id] = append(lost[id], network)
			}
		}
	}
	var networks []*conflist.Network
	for _, name := range slices.Concat(s.Networks, c.cfg.Networks) {
		n, err := c.lookup(name) // scopeNetworks returns the error
		switch {
		case err == nil:
			networks = append(networks, n)
		case name != "": // the search for owners needs only the name
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
			marked, err := bounded(ctx, c, func(ctx context.Context) ([]string, error) {
				return cleanup.Marked(ctx, n.Name, n.Bytes, c.cfg.StateDir)
			})
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

// ofScope reports whether a record belongs to a scope. The slots of pools belong to all
// scopes: no program can take those of an ended process.
func ofScope(scope string, r *record.Record) bool { return r.Scope == scope || r.Pool != "" }

// inScope returns the IDs of the recorded allocations of a scope, without the slots of living
// processes, and the containers of all recorded allocations. A record that cannot be read has the
// scope "", so that its error is reported.
func (c *Configurator) inScope(scope string) (ids []string, containers map[string]bool, err error) {
	all, err := c.store.IDs()
	containers = map[string]bool{}
	for _, id := range all {
		r, err := c.store.Get(id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			r = &record.Record{ID: id, Slot: c.takenSlot(id)}
		}
		containers[r.Container()] = true
		if ofScope(scope, r) && !c.isSlot(r) {
			ids = append(ids, id)
		}
	}
	return ids, containers, err
}

// within returns the IDs of the recorded allocations that a Repair or Recover of a scope
// includes. A record that cannot be read has the scope "".
func (c *Configurator) within(s Scope) ([]string, error) {
	if s.Name == "" {
		return c.store.IDs()
	}
	ids, _, err := c.inScope(s.Name)
	return ids, err
}

// covers reports whether a Repair or Recover of a scope includes an allocation.
func covers(s Scope, r *record.Record) bool { return s.Name == "" || ofScope(s.Name, r) }

// reachesPlugins reports whether GC of a scope runs CNI GC, which affects the attachments of
// all scopes and of other runtimes.
func reachesPlugins(s Scope) bool { return s.Name == "" || s.Attachments != nil }

// scopeNetworks returns the networks whose plugins run CNI GC even if they have no
// allocations.
func (c *Configurator) scopeNetworks(s Scope) ([]*conflist.Network, error) {
	networks, err := c.namedNetworks(s.Networks, s.Conflists)
	if s.Name == "" && len(s.Networks) == 0 {
		networks = append(networks, c.configured()...)
	}
	return networks, err
}

// namedNetworks returns the networks with the given names, followed by those of the
// given configuration lists. It joins the errors, and returns the other networks with
// them.
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

// collection has the parameters of collect.
type collection struct {
	scope  Scope
	lost   []string // the networks of the allocation if it has no record
	dead   []string // all allocations that this GC removes
	began  time.Time
	before *summaries // collect adds the allocation
}

// collect removes one allocation, unless it was set up since GC began, and returns its
// networks.
func (c *Configurator) collect(ctx context.Context, id string, how collection) (networks []*conflist.Network, removed bool, err error) {
	if err := plan.ValidateID(id); err != nil {
		return nil, false, err
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	r, stays, err := c.collectable(id, how.scope, how.began)
	if err != nil || stays {
		return nil, false, err
	}
	how.before.add(summaryBefore(id, r, how.lost))
	if r == nil {
		err = c.removeUnrecorded(ctx, Allocation{ID: id, Networks: how.lost})
		return nil, err == nil, err
	}
	p := c.planToRemove(r)
	if how.scope.DestroyNetns && !r.Acknowledged { // Teardown has decided about the namespace
		err = c.netns.AddForTeardown(Allocation{ID: id}, how.dead...)
	}
	if err == nil || errors.Is(err, ErrInUse) { // keep the namespace of another allocation
		err = c.remove(ctx, p)
	}
	return p.Readable(), err == nil, err
}

// summaryBefore returns the summary of a record, or of an allocation without one.
func summaryBefore(id string, r *record.Record, lost []string) Record {
	if r == nil {
		return plan.SummaryOfLost(id, lost)
	}
	return plan.Summary(r)
}

// collectable returns the record of an allocation that is not live, nil if it was lost. stays
// reports that GC keeps the allocation, because it was set up since GC began, also in another scope, or
// is a runtime's container. An error means that GC cannot remove it.
func (c *Configurator) collectable(id string, s Scope, began time.Time) (r *record.Record, stays bool, err error) {
	if err := plan.ValidateID(id); err != nil {
		return nil, false, err
	}
	r, err = c.store.Get(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		stays, err := c.isRuntimes(id)
		if err == nil && strings.HasPrefix(id, slotPrefix) { // an allocation may have taken the slot meanwhile
			var containers map[string]bool
			_, containers, err = c.inScope("")
			stays = stays || containers[id]
		}
		return nil, stays, err
	case unreadable(err):
		return nil, false, withoutNetns(err)
	case err != nil:
		return nil, false, err
	}
	return r, !ofScope(s.Name, r) || c.since(began, r.Created), nil
}

// since reports whether an allocation was created after GC began. A time of creation in the
// future means that the clock was set back: before GC began, unless the monotonic clock shows
// that it was while GC ran.
func (c *Configurator) since(began, created time.Time) bool {
	now := c.now()
	unmoved := began.Add(now.Sub(began)) // by the monotonic clock
	return created.After(began) && !(created.After(now) && created.After(unmoved))
}

// configured returns the networks of the Config. Other networks in the same directory may
// belong to another runtime, whose attachments are not known.
func (c *Configurator) configured() []*conflist.Network {
	var networks []*conflist.Network
	for _, name := range c.cfg.Networks {
		if n, err := c.lookup(name); err == nil {
			networks = append(networks, n)
		}
	}
	return networks
}
