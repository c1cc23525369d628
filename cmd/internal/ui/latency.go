package ui

import (
	"cmp"
	"math"
	"net/http"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// histogram is the distribution of the durations of an operation, or of a step of it.
type histogram struct {
	Operation string `json:"operation"`
	// Part is the engine of an operation, or the name of a step.
	Part    string   `json:"part"`
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum"` // in seconds
	Buckets []bucket `json:"buckets"`
}

// bucket has the number of durations up to its Limit and above that of the bucket before.
type bucket struct {
	Limit *float64 `json:"limit"` // in seconds; null for no limit
	Count uint64   `json:"count"`
}

// latencies reads the durations of operations since the start of the daemon.
func (s *Server) latencies(r *http.Request) (any, error) {
	answer := struct {
		Operations []histogram `json:"operations"`
		Steps      []histogram `json:"steps"`
	}{[]histogram{}, []histogram{}}
	if s.options.Metrics == nil {
		return answer, nil
	}
	families, err := s.options.Metrics(r.Context())
	if err != nil {
		return nil, err
	}
	answer.Operations = histograms(families, "allocnet_operation_duration_seconds", "engine")
	answer.Steps = histograms(families, "allocnet_operation_step_duration_seconds", "step")
	return answer, nil
}

// histograms returns the histograms of one family, those with the most observations first.
func histograms(families []*dto.MetricFamily, name, label string) []histogram {
	list := []histogram{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			h := histogram{Count: m.GetHistogram().GetSampleCount(), Sum: m.GetHistogram().GetSampleSum(), Buckets: bucketsOf(m.GetHistogram())}
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "operation":
					h.Operation = l.GetValue()
				case label:
					h.Part = l.GetValue()
				}
			}
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b histogram) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Part, b.Part))
	})
	return list
}

// bucketsOf returns the buckets with their own counts, where those of the metric include
// the buckets below.
func bucketsOf(h *dto.Histogram) (list []bucket) {
	var below uint64
	for _, b := range h.GetBucket() {
		one := bucket{Count: b.GetCumulativeCount() - below}
		if limit := b.GetUpperBound(); !math.IsInf(limit, 1) {
			one.Limit = &limit
			list = append(list, one)
		}
		below = b.GetCumulativeCount()
	}
	return append(list, bucket{Count: h.GetSampleCount() - lastOf(h)})
}

// lastOf returns the number of observations up to the highest limit.
func lastOf(h *dto.Histogram) (n uint64) {
	for _, b := range h.GetBucket() {
		if !math.IsInf(b.GetUpperBound(), 1) {
			n = b.GetCumulativeCount()
		}
	}
	return n
}
