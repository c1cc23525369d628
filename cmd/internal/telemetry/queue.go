package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Queue is told what becomes of operations before they begin. It is safe for
// concurrent use and never waits.
type Queue struct {
	waiting, running prometheus.Gauge
	refused          prometheus.Counter
	waited           prometheus.Histogram
}

func newQueue() *Queue {
	return &Queue{
		waiting: newGauge("queue_length", "Operations that wait to be let through."),
		running: newGauge("queue_running", "Operations that were let through and have not ended."),
		refused: counter("queue_refused_total", "Operations that were refused, because the queue was full."),
		waited: prometheus.NewHistogram(histogramOpts("queue_wait_seconds",
			"Time that operations waited that were let through.")),
	}
}

// Waiting tells that so many more operations wait; fewer, if negative.
func (q *Queue) Waiting(more int) { q.waiting.Add(float64(more)) }

// Running tells that so many more operations were let through; fewer, if negative.
func (q *Queue) Running(more int) { q.running.Add(float64(more)) }

// Waited tells how long an operation waited that was let through, even if not at
// all.
func (q *Queue) Waited(d time.Duration) { q.waited.Observe(d.Seconds()) }

// Refused tells that an operation found the queue full.
func (q *Queue) Refused() { q.refused.Inc() }
