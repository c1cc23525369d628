package telemetry

import (
	"errors"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/configurator"
)

const namespace = "allocnet"

// buckets cover operations in this process, which take a fraction of a millisecond,
// operations with plugin binaries, which take some hundred milliseconds, and timeouts
// of up to a minute.
var buckets = []float64{
	.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60,
}

// metrics are the metrics of operations and reloads. host counts the state of the host.
type metrics struct {
	registry *prometheus.Registry
	names    networkNames
	queue    *Queue
	host     *host

	operations, retries, leftovers *prometheus.CounterVec
	forced                         prometheus.Counter
	operationTime, stepTime        *prometheus.HistogramVec
	reloadOK, reloadTime           prometheus.Gauge
	comparisons, repairs           *prometheus.CounterVec
	restored, backOffs             prometheus.Counter
	unhealthy, unchecked           prometheus.Gauge
}

func newMetrics(o Options, now func() time.Time) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		queue:    newQueue(),
		operations: counters("operations_total",
			"Operations that ended. One on several networks counts for each of them.", "network", "operation", "engine", "outcome"),
		operationTime: histograms("operation_duration_seconds", "Time that operations took.", "operation", "engine"),
		stepTime: histograms("operation_step_duration_seconds",
			"Time that steps of operations took. Some steps are parts of others.", "operation", "step"),
		retries:    counters("retries_total", "ADDs that were tried again, for each network of the allocation.", "network"),
		forced:     counter("forced_cleanups_total", "Allocations of which something had to be removed by force."),
		leftovers:  counters("leftovers_total", "What DEL had left on the host, by whether force removed it.", "kind", "fate"),
		reloadOK:   newGauge("config_last_reload_successful", "Whether the last reload of the configuration succeeded."),
		reloadTime: newGauge("config_last_reload_success_timestamp_seconds", "When the configuration was last read well."),

		comparisons: counters("heal_comparisons_total", "Comparisons of all allocations with the kernel, by the kind of the change that led to them.", "cause"),
		repairs:     counters("heal_repairs_total", "Repairs of what other programs had removed, by the kind of the change.", "cause"),
		restored:    counter("heal_restored_allocations_total", "Allocations of which something was restored."),
		unhealthy:   newGauge("unhealthy_allocations", "Allocations whose network is damaged and has not been repaired."),
		unchecked:   newGauge("unchecked_allocations", "Allocations whose last CHECK could not be completed, and that are not known to be unhealthy."),
		backOffs:    counter("heal_backoffs_total", "Repairs after which the next one had to wait, because a program keeps removing something."),
	}
	m.host = newHost(o, now, m.names.label)
	m.registry.MustRegister(m.operations, m.operationTime, m.stepTime, m.retries, m.forced, m.leftovers,
		m.queue.waiting, m.queue.running, m.queue.refused, m.queue.waited, m.reloadOK, m.reloadTime,
		m.comparisons, m.repairs, m.restored, m.backOffs, m.host, buildInfo(o),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if !o.NoHealth {
		m.registry.MustRegister(m.unhealthy, m.unchecked)
	}
	for _, cause := range causes {
		m.repairs.WithLabelValues(cause)
	}
	for _, fate := range []string{"left", "removed"} {
		m.leftovers.WithLabelValues(otherKind, fate)
		for kind := range kinds {
			m.leftovers.WithLabelValues(string(kind), fate)
		}
	}
	return m
}

// causes are the causes of repairs. They are exported before the first repair, as the
// kinds of leftovers are, because Prometheus sees no increase in a series that begins
// with 1.
var causes = []string{"rules", "firewall", "link", "address", "route", "forwarding", "veth", "lost", "drift"}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func histograms(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(histogramOpts(name, help), labels)
}

func histogramOpts(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}
}

func newGauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}

func buildInfo(o Options) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "The program's version, with the value 1.",
		ConstLabels: prometheus.Labels{"version": o.Version, "revision": o.Revision, "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

// operation counts an operation that ended.
func (m *metrics) operation(s configurator.Step, took time.Duration, outcome Outcome) {
	m.operationTime.WithLabelValues(s.Operation, string(s.Engine)).Observe(took.Seconds())
	if len(s.Networks) == 0 {
		m.operations.WithLabelValues("", s.Operation, string(s.Engine), string(outcome)).Inc()
	}
	for _, network := range s.Networks {
		m.operations.WithLabelValues(m.names.label(network), s.Operation, string(s.Engine), string(outcome)).Inc()
	}
}

// step counts a step that ended.
func (m *metrics) step(s configurator.Step, took time.Duration, err error) {
	m.stepTime.WithLabelValues(s.Operation, s.Name).Observe(took.Seconds())
	if s.Name == configurator.StepWait && err == nil {
		for _, network := range s.Networks {
			m.retries.WithLabelValues(m.names.label(network)).Inc()
		}
	}
	var left *configurator.LeftoverError
	if s.Name == configurator.StepForce && errors.As(err, &left) {
		m.countLeftovers(left.Leftovers, "left")
	}
}

func (m *metrics) countLeftovers(list []configurator.Leftover, fate string) {
	for _, l := range list {
		kind := otherKind
		if kinds[l.Kind] {
			kind = string(l.Kind)
		}
		m.leftovers.WithLabelValues(kind, fate).Inc()
	}
}

// otherKind is the label of all other kinds.
const otherKind = "other"

// kinds are the kinds of leftovers with a label of their own.
var kinds = map[cleanup.Kind]bool{
	cleanup.KindLink: true, cleanup.KindIPTablesRule: true, cleanup.KindIPTablesChain: true,
	cleanup.KindNFTablesRule: true, cleanup.KindNFTablesElement: true, cleanup.KindFirewalldSource: true, cleanup.KindLease: true,
	cleanup.KindConntrack: true, cleanup.KindCache: true, cleanup.KindRoute: true,
}

func (m *metrics) reloaded(err error, at time.Time) {
	if err != nil {
		m.reloadOK.Set(0)
		return
	}
	m.reloadOK.Set(1)
	m.reloadTime.Set(float64(at.UnixMilli()) / 1000)
}
