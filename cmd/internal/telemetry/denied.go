package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Denied publishes flows that network policies have denied.
func (t *Telemetry) Denied(d *client.Denied) { t.events.publish(client.TypeDenied, *d) }

// denials adds up the packets that policies of each network have dropped. The kernel's counters
// end with their attachment, so it adds what they grew by since its last look, as a meter does.
type denials struct {
	read  func() ([]ruleset.Dropped, error)
	label func(network string) string

	known map[string][2]uint64 // egress and ingress by the owner; nil before the first look
	sums  map[string]*[2]uint64
}

// look reads all counters. The packets before the first look do not count.
func (d *denials) look() error {
	list, err := d.read()
	if err != nil {
		return err
	}
	before := d.known
	if d.known = make(map[string][2]uint64, len(list)); before == nil {
		d.sums = map[string]*[2]uint64{}
	}
	for i := range list {
		owner := list[i].Owner.String()
		now := [2]uint64{list[i].Egress.Packets, list[i].Ingress.Packets}
		d.known[owner] = now
		network := d.label(list[i].Owner.Network)
		if d.sums[network] == nil {
			d.sums[network] = &[2]uint64{}
		}
		if before == nil {
			continue
		}
		was := before[owner]
		for direction := range now {
			if now[direction] < was[direction] { // of another attachment with the same name
				was[direction] = 0
			}
			d.sums[network][direction] += now[direction] - was[direction]
		}
	}
	return nil
}

// denied returns the metrics of all networks that had an attachment with a policy.
func (h *host) denied() (list []prometheus.Metric) {
	if err := h.denials.look(); err != nil {
		return []prometheus.Metric{prometheus.NewInvalidMetric(h.policyDenied, err)}
	}
	for network, sum := range h.denials.sums {
		list = append(list, total(h.policyDenied, sum[0], network, "egress"), total(h.policyDenied, sum[1], network, "ingress"))
	}
	return list
}
