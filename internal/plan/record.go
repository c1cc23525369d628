package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// Public converts a record to its exported type. Ports, labels, policy, limits and revision are those
// from before an update that is going on. The result is never nil.
func Public(r *record.Record) (*allocnet.Record, error) {
	public := &allocnet.Record{
		ID: r.ID, ContainerID: otherContainer(r), Scope: r.Scope, Labels: r.Labels, Policy: r.Policy, Netns: r.Netns, Phase: allocnet.Phase(r.Phase), Acknowledged: r.Acknowledged, Engine: allocnet.Engine(r.Engine),
		PluginDirs: r.PluginDirs, Created: r.Created, Updated: r.Updated, NetnsGone: netns.Gone(r), Args: PublicArgs(r.Args), Revision: RevisionOf(r),
	}
	public.Ports, public.Unserved = Served(r)
	if limits, err := LimitsOf(r); err == nil && limits != (allocnet.Bandwidth{}) {
		public.Bandwidth = &limits
	}
	for _, a := range r.Attachments {
		public.Networks = append(public.Networks, allocnet.NetworkRecord{
			Network: a.Network, Interface: a.IfName, Config: json.RawMessage(a.Config), Result: a.Result,
		})
	}
	if r.Phase != record.Ready {
		return public, nil
	}
	var err error
	public.Status, err = StatusOf(r)
	return public, err
}

// otherContainer returns the CNI_CONTAINERID of a record if it is not the ID.
func otherContainer(r *record.Record) string {
	if container := r.Container(); container != r.ID {
		return container
	}
	return ""
}

// Summary returns the summary of a record for reports. It uses only the record.
func Summary(r *record.Record) allocnet.Record {
	s := allocnet.Record{
		ID: r.ID, ContainerID: otherContainer(r), Scope: r.Scope, Labels: r.Labels, Policy: r.Policy, Netns: r.Netns, Phase: allocnet.Phase(r.Phase), Engine: allocnet.Engine(r.Engine),
		Ports: r.PortsBefore(), PluginDirs: r.PluginDirs, Created: r.Created, Updated: r.Updated, Args: PublicArgs(r.Args),
	}
	for _, a := range r.Attachments {
		s.Networks = append(s.Networks, allocnet.NetworkRecord{Network: a.Network, Interface: a.IfName})
	}
	return s
}

// SummaryOfLost returns the summary of an allocation without a record that was found in some
// networks.
func SummaryOfLost(id string, networks []string) allocnet.Record {
	s := allocnet.Record{ID: id}
	for _, name := range networks {
		s.Networks = append(s.Networks, allocnet.NetworkRecord{Network: name})
	}
	return s
}

// PublicArgs returns CNI_ARGS as a map without IgnoreUnknown; nil if there are none.
func PublicArgs(args [][2]string) map[string]string {
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

// StatusOf selects the status from the recorded results. The selection is
// deterministic, so it is not recorded itself.
func StatusOf(r *record.Record) (*allocnet.Status, error) {
	var results []*types100.Result
	for _, a := range r.Attachments {
		parsed, err := engine.ParseResult(a.Result)
		if err != nil {
			return nil, fmt.Errorf("allocation %q, network %q: %w", r.ID, a.Network, err)
		}
		results = append(results, parsed)
	}
	return StatusFrom(r, results)
}

// StatusFrom selects the status of a record from parsed results.
func StatusFrom(r *record.Record, results []*types100.Result) (*allocnet.Status, error) {
	var list []networkResult
	var texts []json.RawMessage
	for i, a := range r.Attachments {
		texts = append(texts, a.Result)
		list = append(list, networkResult{network: a.Network, ifName: a.IfName, netns: r.Netns, result: results[i]})
	}
	ports, unserved := Served(r)
	s, err := newStatus(list, ports)
	if err != nil {
		return nil, fmt.Errorf("allocation %q: %w", r.ID, err)
	}
	s.Results, s.Unserved, s.Revision = texts, unserved, RevisionOf(r)
	return s, nil
}

// NeedsAddress reports whether WithAddress may return an error for a record.
func NeedsAddress(r *record.Record) bool {
	return r.RequireAddress || len(r.Ports) > 0 || !IsEmpty(r.Capabilities[IPs])
}

// WithAddress returns s, or ErrNoAddress if no interface has an address and the allocation
// requires one: by RequireAddress, by requested addresses or by published ports.
func WithAddress(r *record.Record, s *allocnet.Status, err error) (*allocnet.Status, error) {
	if err != nil {
		return nil, err
	}
	requested := !IsEmpty(r.Capabilities[IPs]) && !slices.Contains(s.Unserved, IPs)
	if s.Address != "" || !r.RequireAddress && !requested && len(s.Ports) == 0 {
		return s, nil
	}
	var networks []string
	for _, a := range r.Attachments {
		networks = append(networks, fmt.Sprintf("%q", a.Network))
	}
	return nil, fmt.Errorf("allocation %q: %w in the results of the networks %s", r.ID, allocnet.ErrNoAddress, strings.Join(networks, ", "))
}

// Served returns the published ports of a record, without those of an update that is going on,
// and the capabilities that no plugin declares. Records of earlier versions lack the latter, and may have ports that no plugin
// publishes.
func Served(r *record.Record) (ports []portmap.Mapping, without []string) {
	without = r.Unserved
	if without == nil && len(r.Capabilities) > 0 {
		without = New(r, parseRecorded).Undeclared()
	}
	if slices.Contains(without, portmap.Capability) {
		return nil, without
	}
	return r.PortsBefore(), without
}

// RevisionOf returns the Revision of a record. It differs from those of earlier allocations
// with the same ID.
func RevisionOf(r *record.Record) string { return revision(r, r.Revision) }

// RevisionBefore returns the Revision that a record had before its last change.
func RevisionBefore(r *record.Record) string { return revision(r, r.Revision-1) }

func revision(r *record.Record, number int) string {
	return strconv.FormatInt(r.Created.UnixMicro(), 36) + "-" + strconv.Itoa(number)
}
