package telemetry

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/allocnet/allocnet/cmd/internal/addresses"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// hostTime is the time for which counts are reused.
const hostTime = 5 * time.Second

// host counts allocations, leases and configuration files, which other processes change
// as well. It is a prometheus.Collector.
type host struct {
	Options
	now func() time.Time

	poolReady, poolTaken, poolDry, poolDiscarded *prometheus.Desc

	poolSize, poolFailing            *prometheus.Desc
	live, pending, used, free, files *prometheus.Desc
	tracked, trackedMax, ownerless   *prometheus.Desc

	carried [6]*prometheus.Desc
	meter   meter

	ready, findings, listenerFailing *prometheus.Desc

	policyDenied *prometheus.Desc
	denials      denials

	mu      sync.Mutex
	counted time.Time
	last    []prometheus.Metric

	withoutOwner, found, readiness *background
}

func newHost(o Options, now func() time.Time, label func(string) string) *host {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	}
	h := &host{
		Options: o, now: now, carried: trafficDescs(desc),
		policyDenied:    desc("policy_denied_packets_total", "Packets from (egress) and to (ingress) allocations that network policies dropped.", "network", "direction"),
		live:            desc("allocations", "Allocations that have a record."),
		pending:         desc("removals_pending", "Allocations whose teardown was acknowledged and that are not yet deleted."),
		used:            desc("leases_used", "Addresses that host-local has leased.", "network", "family"),
		free:            desc("leases_free", "Addresses that host-local can still lease.", "network", "family"),
		tracked:         desc("conntrack_entries", "Connections that the kernel tracks in the network namespace of the host."),
		trackedMax:      desc("conntrack_entries_limit", "Number of tracked connections beyond which the kernel drops new ones; 0 for no limit."),
		ownerless:       desc("leases_without_owner", "Leases that no allocation, runtime or network namespace uses.", "network"),
		poolSize:        desc("pool_size", "Network namespaces that are to be prepared.", "network"),
		poolFailing:     desc("pool_failing", "Whether the last network namespace could not be prepared.", "network"),
		poolReady:       desc("pool_ready", "Prepared network namespaces.", "network"),
		poolTaken:       desc("pool_taken_total", "Setups that got a prepared network namespace.", "network"),
		poolDry:         desc("pool_dry_total", "Setups that found the pool empty.", "network"),
		poolDiscarded:   desc("pool_discarded_total", "Prepared network namespaces that were destroyed unused.", "network"),
		ready:           desc("network_ready", "Whether a setup in a network can be expected to work. Without a network, whether the conditions of all networks are met.", "network"),
		findings:        desc("doctor_findings", "What the quick checks of doctor find.", "severity"),
		listenerFailing: desc("listener_failing", "Whether the listener of a setting could not be made; the daemon tries again.", "setting"),
		files:           desc("config_files_in_error", "Files of the network configuration directory that are not used as they are."),
	}
	h.withoutOwner = &background{count: o.Ownerless, now: now, least: ownerlessTime, part: countPart}
	h.found = &background{count: o.Findings, now: now, least: findingsTime, part: countPart}
	h.readiness = &background{count: o.Ready, now: now, least: readyTime, part: readyPart}
	h.meter = meter{links: o.Links, label: func(owner string) string { return label(h.networkOf(owner)) }}
	if o.Links != nil {
		_ = h.meter.look() // if it fails, the next look is the first one
	}
	h.denials = denials{read: o.Denied, label: h.meter.label}
	if o.Denied != nil {
		_ = h.denials.look()
	}
	return h
}

// Describe implements prometheus.Collector.
func (h *host) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		h.poolSize, h.poolReady, h.poolFailing, h.poolTaken, h.poolDry, h.poolDiscarded, h.tracked, h.trackedMax, h.live, h.pending, h.used, h.free, h.ownerless, h.files, h.policyDenied, h.ready, h.findings, h.listenerFailing,
	} {
		to <- d
	}
	for _, d := range h.carried {
		to <- d
	}
}

// Collect implements prometheus.Collector. It counts at most once per hostTime.
func (h *host) Collect(to chan<- prometheus.Metric) {
	for _, m := range h.current() {
		to <- m
	}
}

// current returns the metrics. If several scrapes run concurrently, only one counts.
func (h *host) current() []prometheus.Metric {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since := h.now().Sub(h.counted); since < 0 || since >= hostTime {
		h.last, h.counted = h.count(), h.now()
	}
	return h.last
}

// count returns the metrics of the host. A count that fails becomes an invalid metric.
func (h *host) count() []prometheus.Metric {
	var list []prometheus.Metric
	if h.Allocations != nil {
		n, err := h.Allocations()
		if err != nil {
			list = append(list, prometheus.NewInvalidMetric(h.live, fmt.Errorf("count allocations: %w", err)))
		} else {
			list = append(list, gauge(h.live, float64(n)))
		}
	}
	if h.Pending != nil {
		list = append(list, gauge(h.pending, float64(h.Pending())))
	}
	if h.Pools != nil {
		list = append(list, h.pools()...)
	}
	if h.Conntrack != nil {
		list = append(list, h.conntrack()...)
	}
	if h.Links != nil {
		list = append(list, h.traffic()...)
	}
	if h.Listeners != nil {
		for setting, fails := range h.Listeners() {
			list = append(list, gauge(h.listenerFailing, truth(fails), setting))
		}
	}
	list = append(list, h.counts(h.findings, h.found)...)
	list = append(list, h.counts(h.ready, h.readiness)...)
	if h.Denied != nil {
		list = append(list, h.denied()...)
	}
	if h.Networks == nil {
		return list
	}
	networks, problems := h.Networks()
	list = append(list, gauge(h.files, float64(len(problems))))
	for _, n := range networks[:min(len(networks), maxNetworks)] {
		list = append(list, h.leases(n)...)
	}
	return append(list, h.leasesWithoutOwner(networks)...)
}

// counts returns what was counted in the background, by label; nothing before the first count has ended.
func (h *host) counts(d *prometheus.Desc, b *background) (list []prometheus.Metric) {
	if b.count == nil {
		return nil
	}
	counts, err := b.current()
	if err != nil {
		return []prometheus.Metric{prometheus.NewInvalidMetric(d, err)}
	}
	for _, label := range slices.Sorted(maps.Keys(counts))[:min(len(counts), maxNetworks)] {
		list = append(list, gauge(d, float64(counts[label]), label))
	}
	return list
}

// leasesWithoutOwner returns nothing before the first count has ended.
func (h *host) leasesWithoutOwner(networks []*conflist.Network) (list []prometheus.Metric) {
	if h.Ownerless == nil {
		return nil
	}
	counts, err := h.withoutOwner.current()
	if err != nil {
		return []prometheus.Metric{prometheus.NewInvalidMetric(h.ownerless, fmt.Errorf("count leases without an owner: %w", err))}
	}
	for _, n := range networks[:min(len(networks), maxNetworks)] {
		if count, counted := counts[n.Name]; counted {
			list = append(list, gauge(h.ownerless, float64(count), n.Name))
		}
	}
	return list
}

func (h *host) pools() (list []prometheus.Metric) {
	for _, p := range h.Pools() {
		list = append(list, gauge(h.poolSize, float64(p.Size), p.Network), gauge(h.poolReady, float64(p.Ready), p.Network),
			gauge(h.poolFailing, truth(p.Err != nil), p.Network), total(h.poolTaken, p.Taken, p.Network),
			total(h.poolDry, p.Dry, p.Network), total(h.poolDiscarded, p.Discarded, p.Network))
	}
	return list
}

// conntrack returns nothing if the kernel does not track connections.
func (h *host) conntrack() []prometheus.Metric {
	entries, limit, err := h.Conntrack()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return []prometheus.Metric{prometheus.NewInvalidMetric(h.tracked, err)}
	}
	return []prometheus.Metric{gauge(h.tracked, float64(entries)), gauge(h.trackedMax, float64(limit))}
}

// truth is the value of a metric that is true or false.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func total(d *prometheus.Desc, value uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

// leases returns the lease metrics of one network, one pair per address family in use.
func (h *host) leases(n *conflist.Network) (list []prometheus.Metric) {
	counts, err := addresses.CountValid(n)
	if err != nil {
		return []prometheus.Metric{prometheus.NewInvalidMetric(h.used, err)}
	}
	for _, family := range slices.Sorted(maps.Keys(counts)) {
		c := counts[family]
		list = append(list, gauge(h.used, c.Used, n.Name, family), gauge(h.free, c.Free, n.Name, family))
	}
	return list
}
