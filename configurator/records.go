package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// List returns the records of all allocations, sorted by ID. For records that cannot be read,
// it joins a *RecordError each; it returns the other records with the error.
func (c *Configurator) List(ctx context.Context) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stored, err := c.store.List()
	errs := []error{err}
	records := make([]Record, 0, len(stored))
	for _, r := range stored {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if r.Pool != "" { // not an allocation yet
			continue
		}
		public, err := publicRecord(r)
		errs = append(errs, err)
		records = append(records, *public)
	}
	return records, errors.Join(errs...)
}

// Get returns the record of one allocation. It returns ErrNotFound if there is none, and a
// *RecordError if it cannot be read.
func (c *Configurator) Get(ctx context.Context, id string) (*Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := c.load(id)
	if err != nil {
		return nil, err
	}
	public, err := publicRecord(r)
	public.NetnsGone = public.NetnsGone || r.Netns != "" && netns.IsGone(r)
	return public, err
}

// load reads a record. It returns ErrNotFound if there is none.
func (c *Configurator) load(id string) (*record.Record, error) {
	if err := validateID(id); err != nil {
		return nil, err
	}
	r, err := c.store.Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q has no record in %s", ErrNotFound, id, c.cfg.StateDir)
	}
	return r, err
}

// unreadable reports whether an error means that no version of allocnet can read a record. A
// newer version can read a record that it wrote.
func unreadable(err error) bool {
	var corrupt *record.CorruptError
	return errors.As(err, &corrupt) && !errors.Is(err, record.ErrNewer)
}

// publicRecord converts a record to its exported type. The result is never nil.
func publicRecord(r *record.Record) (*Record, error) {
	public := &Record{
		ID: r.ID, ContainerID: otherContainer(r), Scope: r.Scope, Labels: r.Labels, Policy: r.Policy, Netns: r.Netns, Phase: Phase(r.Phase), Acknowledged: r.Acknowledged, Engine: Engine(r.Engine),
		PluginDirs: r.PluginDirs, Created: r.Created, Updated: r.Updated, NetnsGone: netns.Gone(r), Args: publicArgs(r.Args), Revision: revisionOf(r),
	}
	public.Ports, public.Unserved = served(r)
	if limits, err := limitsOf(r); err == nil && limits != (Bandwidth{}) {
		public.Bandwidth = &limits
	}
	for _, a := range r.Attachments {
		public.Networks = append(public.Networks, NetworkRecord{
			Network: a.Network, Interface: a.IfName, Config: json.RawMessage(a.Config), Result: a.Result,
		})
	}
	if r.Phase != record.Ready {
		return public, nil
	}
	var err error
	public.Status, err = statusOf(r)
	return public, err
}

// otherContainer returns the CNI_CONTAINERID of a record if it is not the ID.
func otherContainer(r *record.Record) string {
	if container := r.Container(); container != r.ID {
		return container
	}
	return ""
}

// summaryOf returns the summary of a record for reports. It uses only the record.
func summaryOf(r *record.Record) Record {
	s := Record{
		ID: r.ID, ContainerID: otherContainer(r), Scope: r.Scope, Labels: r.Labels, Policy: r.Policy, Netns: r.Netns, Phase: Phase(r.Phase), Engine: Engine(r.Engine),
		Ports: r.Ports, PluginDirs: r.PluginDirs, Created: r.Created, Updated: r.Updated, Args: publicArgs(r.Args),
	}
	for _, a := range r.Attachments {
		s.Networks = append(s.Networks, NetworkRecord{Network: a.Network, Interface: a.IfName})
	}
	return s
}

// summaryOfLost returns the summary of an allocation without a record that was found in some
// networks.
func summaryOfLost(id string, networks []string) Record {
	s := Record{ID: id}
	for _, name := range networks {
		s.Networks = append(s.Networks, NetworkRecord{Network: name})
	}
	return s
}

// summaries collects the records of a report. It is safe for concurrent use.
type summaries struct {
	mu   sync.Mutex
	byID map[string]Record
}

func (s *summaries) add(one Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]Record{}
	}
	s.byID[one.ID] = one
}

// of returns the summaries of allocations, in the order of the IDs.
func (s *summaries) of(ids []string) []Record {
	var list []Record
	for _, id := range ids {
		if one, ok := s.byID[id]; ok {
			list = append(list, one)
		}
	}
	return list
}

// publicArgs returns CNI_ARGS as a map without IgnoreUnknown; nil if there are none.
func publicArgs(args [][2]string) map[string]string {
	var public map[string]string
	for _, arg := range args {
		if arg[0] == ignoreUnknown {
			continue
		}
		if public == nil {
			public = map[string]string{}
		}
		public[arg[0]] = arg[1]
	}
	return public
}

// statusOf selects the status from the recorded results. The selection is
// deterministic, so it is not recorded itself.
func statusOf(r *record.Record) (*Status, error) {
	var results []*types100.Result
	for _, a := range r.Attachments {
		parsed, err := engine.ParseResult(a.Result)
		if err != nil {
			return nil, fmt.Errorf("allocation %q, network %q: %w", r.ID, a.Network, err)
		}
		results = append(results, parsed)
	}
	return statusFrom(r, results)
}

// statusFrom selects the status of a record from parsed results.
func statusFrom(r *record.Record, results []*types100.Result) (*Status, error) {
	var list []networkResult
	var texts []json.RawMessage
	for i, a := range r.Attachments {
		texts = append(texts, a.Result)
		list = append(list, networkResult{network: a.Network, ifName: a.IfName, netns: r.Netns, result: results[i]})
	}
	ports, unserved := served(r)
	s, err := newStatus(list, ports)
	if err != nil {
		return nil, fmt.Errorf("allocation %q: %w", r.ID, err)
	}
	s.Results, s.Unserved, s.Revision = texts, unserved, revisionOf(r)
	return s, nil
}

// ips is the capability of requested addresses.
const ips = "ips"

// needsAddress reports whether withAddress may return an error for a record.
func needsAddress(r *record.Record) bool {
	return r.RequireAddress || len(r.Ports) > 0 || !isEmpty(r.Capabilities[ips])
}

// withAddress returns s, or ErrNoAddress if no interface has an address and the allocation
// requires one: by RequireAddress, by requested addresses or by published ports.
func withAddress(r *record.Record, s *Status, err error) (*Status, error) {
	if err != nil {
		return nil, err
	}
	requested := !isEmpty(r.Capabilities[ips]) && !slices.Contains(s.Unserved, ips)
	if s.Address != "" || !r.RequireAddress && !requested && len(s.Ports) == 0 {
		return s, nil
	}
	var networks []string
	for _, a := range r.Attachments {
		networks = append(networks, fmt.Sprintf("%q", a.Network))
	}
	return nil, fmt.Errorf("allocation %q: %w in the results of the networks %s", r.ID, ErrNoAddress, strings.Join(networks, ", "))
}

// served returns the published ports of a record, and the capabilities that no plugin
// declares. Records of earlier versions lack the latter, and may have ports that no plugin
// publishes.
func served(r *record.Record) (ports []portmap.Mapping, without []string) {
	without = r.Unserved
	if without == nil && len(r.Capabilities) > 0 {
		without = newPlan(r, parseRecorded).unserved()
	}
	if slices.Contains(without, portmap.Capability) {
		return nil, without
	}
	return r.Ports, without
}
