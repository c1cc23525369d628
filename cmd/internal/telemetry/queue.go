package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Queue counts waiting, running and refused operations. It is safe for concurrent use
// and does not block.
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

// Waiting adds to the number of waiting operations.
func (q *Queue) Waiting(more int) { q.waiting.Add(float64(more)) }

// Running adds to the number of running operations.
func (q *Queue) Running(more int) { q.running.Add(float64(more)) }

// Waited records how long an admitted operation waited, including zero.
func (q *Queue) Waited(d time.Duration) { q.waited.Observe(d.Seconds()) }

// Refused counts an operation that found the queue full.
func (q *Queue) Refused() { q.refused.Inc() }
