package telemetry

import "github.com/allocnet/allocnet/client"

// Healed publishes and counts a repair, or an allocation that became unhealthy.
func (t *Telemetry) Healed(h client.Heal) {
	if h.Unhealthy == "" {
		t.metrics.repairs.WithLabelValues(h.Cause).Inc()
		t.metrics.restored.Add(float64(h.Restored))
	}
	if h.BackOff > 0 {
		t.metrics.backOffs.Inc()
	}
	t.events.publish(client.TypeHeal, h)
}

// Compared counts a comparison that changes of these kinds led to.
func (t *Telemetry) Compared(kinds []string) {
	for _, kind := range kinds {
		t.metrics.comparisons.WithLabelValues(kind).Inc()
	}
}

// Unhealthy sets the number of unhealthy allocations.
func (t *Telemetry) Unhealthy(n int) { t.metrics.unhealthy.Set(float64(n)) }

// Unchecked sets the number of allocations whose last CHECK could not be completed.
func (t *Telemetry) Unchecked(n int) { t.metrics.unchecked.Set(float64(n)) }
