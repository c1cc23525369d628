package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Links are the links of the host: an *rtnl.Host.
type Links interface {
	Statistics() (map[int]rtnl.Counters, error)
	OwnerOf(index int) (names.Owner, bool, error)
}

// meter adds up the traffic of the links of each network. The kernel's counters end with
// their link, so the meter adds what they grew by since its last look. It misses what a
// link carries after the last look before its end. Its users exclude each other.
type meter struct {
	links Links
	label func(network string) string

	known map[int]*metered // by the index of the link; nil before the first look
	sums  map[string]*rtnl.Counters
}

// metered is a link at the last look.
type metered struct {
	owned   bool
	network string // a label
	asked   int    // how often the kernel was asked for its owner
	last    rtnl.Counters
}

// mostAsked is how often the kernel is asked for the owner of a link that has none: a
// link can be seen before it gets its owner.
const mostAsked = 3

// look reads all counters. The traffic before the first look does not count.
func (m *meter) look() error {
	now, err := m.links.Statistics()
	if err != nil {
		return err
	}
	first := m.known == nil
	if first {
		m.known, m.sums = map[int]*metered{}, map[string]*rtnl.Counters{}
	}
	for index := range m.known {
		if _, exists := now[index]; !exists {
			delete(m.known, index)
		}
	}
	for index, counters := range now {
		if err := m.add(index, counters, first); err != nil {
			return err
		}
	}
	return nil
}

func (m *meter) add(index int, now rtnl.Counters, first bool) error {
	l, seen := m.known[index]
	if !seen {
		l = &metered{}
		if first {
			l.last = now
		}
		m.known[index] = l
	}
	if !l.owned && l.asked < mostAsked {
		l.asked++
		owner, ok, err := m.links.OwnerOf(index)
		if err != nil {
			return err
		}
		if ok {
			l.owned, l.network = true, m.label(owner.Network)
		}
	}
	if !l.owned {
		return nil
	}
	sum := m.sums[l.network]
	if sum == nil {
		sum = &rtnl.Counters{}
		m.sums[l.network] = sum
	}
	grow(sum, l.last, now)
	l.last = now
	return nil
}

// grow adds the growth from one reading to the next. A counter that fell belongs to
// another link, which got the index of one that was deleted.
func grow(sum *rtnl.Counters, from, to rtnl.Counters) {
	s, f, t := fields(sum), fields(&from), fields(&to)
	for i := range s {
		if *t[i] < *f[i] {
			*f[i] = 0
		}
		*s[i] += *t[i] - *f[i]
	}
}

func fields(c *rtnl.Counters) [6]*uint64 {
	return [6]*uint64{&c.RxBytes, &c.TxBytes, &c.RxPackets, &c.TxPackets, &c.RxDropped, &c.TxDropped}
}

// trafficDescs describe the fields in their order. What a sandbox sends is received by
// the host's end of its veth.
func trafficDescs(desc func(name, help string, labels ...string) *prometheus.Desc) (all [6]*prometheus.Desc) {
	for i, d := range [6]struct{ name, help string }{
		{"transmit_bytes_total", "Bytes that allocations sent."},
		{"receive_bytes_total", "Bytes that allocations received."},
		{"transmit_packets_total", "Packets that allocations sent."},
		{"receive_packets_total", "Packets that allocations received."},
		{"transmit_packets_dropped_total", "Packets of allocations that their links dropped."},
		{"receive_packets_dropped_total", "Packets to allocations that their links dropped."},
	} {
		all[i] = desc("network_"+d.name, d.help+" Links of plugin binaries are not counted.", "network")
	}
	return all
}

// traffic returns the metrics of all networks that had a link since the first look.
func (h *host) traffic() (list []prometheus.Metric) {
	if err := h.meter.look(); err != nil {
		return []prometheus.Metric{prometheus.NewInvalidMetric(h.carried[0], err)}
	}
	for network, sum := range h.meter.sums {
		for i, value := range fields(sum) {
			list = append(list, total(h.carried[i], *value, network))
		}
	}
	return list
}

// networkOf returns the name of an owner's network, which may be a hash.
func (h *host) networkOf(owner string) string {
	if !names.IsHash(owner) || h.Networks == nil {
		return owner
	}
	networks, _ := h.Networks()
	for _, n := range networks {
		if (names.Owner{Network: owner}).OfNetwork(n.Name) {
			return n.Name
		}
	}
	return owner
}
