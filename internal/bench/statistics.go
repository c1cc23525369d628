package bench

import (
	"math"
	"slices"
	"time"
)

// samples are measured values.
type samples []float64

// took adds a duration, in seconds.
func (s *samples) took(d time.Duration) { *s = append(*s, d.Seconds()) }

// quantile returns the sample below which the fraction q of the samples lies,
// by the nearest rank. It returns NaN if there are no samples.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

func (s samples) median() float64 { return s.quantile(0.5) }

func (s samples) sum() (sum float64) {
	for _, v := range s {
		sum += v
	}
	return sum
}

// timed adds the duration of f to the samples, unless f fails.
func timed(s *samples, f func() error) error {
	start := time.Now()
	if err := f(); err != nil {
		return err
	}
	s.took(time.Since(start))
	return nil
}
