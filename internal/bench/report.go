package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Units of measures.
const (
	seconds = "s"
	rate    = "1/s" // allocations per second
	memory  = "B"
)

// Measure is one figure of one system.
type Measure struct {
	What    string  `json:"what"`
	System  string  `json:"system"`
	Unit    string  `json:"unit"`
	Median  float64 `json:"median"`
	P95     float64 `json:"p95"`
	Samples int     `json:"samples"`
}

// Target is a bound for the quotient of two measures, or for a single measure.
type Target struct {
	What string `json:"what"`
	// Of and To name measures: "what/system". To is "" for a bound of the
	// measure itself.
	Of string `json:"of"`
	To string `json:"to,omitempty"`
	// Unit is the unit of Limit and Value if To is "".
	Unit string `json:"unit,omitempty"`
	// Limit is the highest permitted value or, with AtLeast, the lowest.
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"atLeast,omitempty"`
	// Value is the quotient or measure, and Verdict its comparison with Limit.
	Value   float64 `json:"value,omitempty"`
	Verdict string  `json:"verdict"`
}

// Verdicts of targets.
const (
	reached     = "reached"
	missed      = "missed"
	notMeasured = "not measured"
)

// Report is the result of one run.
type Report struct {
	Machine  Machine   `json:"machine"`
	Measures []Measure `json:"measures"`
	Targets  []Target  `json:"targets,omitempty"`
	// Skipped has the systems that could not be measured, with the reason.
	Skipped map[string]string `json:"skipped,omitempty"`
	// Comparison is nil unless Compare was called.
	Comparison *Comparison `json:"comparison,omitempty"`
}

// Machine describes the machine of a run.
type Machine struct {
	Time   time.Time `json:"time"`
	Kernel string    `json:"kernel"`
	CPU    string    `json:"cpu,omitempty"`
	CPUs   int       `json:"cpus"`
	Go     string    `json:"go"`
}

func thisMachine() Machine {
	var u unix.Utsname
	_ = unix.Uname(&u) // never fails
	m := Machine{
		Time: time.Now().UTC().Truncate(time.Second), Kernel: unix.ByteSliceToString(u.Release[:]),
		CPUs: runtime.NumCPU(), Go: runtime.Version(),
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

// add adds a measure.
func (r *Report) add(what, system, unit string, s samples) {
	r.Measures = append(r.Measures, Measure{
		What: what, System: system, Unit: unit, Median: s.median(), P95: s.quantile(0.95), Samples: len(s),
	})
}

// Ratio returns the median of one system divided by that of another, of the first
// measure whose name begins with a prefix. It returns false if the report lacks one.
func (r *Report) Ratio(prefix, of, to string) (float64, bool) {
	for _, m := range r.Measures {
		if m.System != of || !strings.HasPrefix(m.What, prefix) {
			continue
		}
		if other, ok := r.find(key(m.What, to)); ok && other.Median > 0 {
			return m.Median / other.Median, true
		}
	}
	return 0, false
}

// find returns the measure with the name "what/system".
func (r *Report) find(name string) (*Measure, bool) {
	for i, m := range r.Measures {
		if key(m.What, m.System) == name {
			return &r.Measures[i], true
		}
	}
	return nil, false
}

func key(what, system string) string { return what + "/" + system }

// judge compares the targets with the measures.
func (r *Report) judge(targets []Target) {
	for _, t := range targets {
		t.judge(r)
		r.Targets = append(r.Targets, t)
	}
}

func (t *Target) judge(r *Report) {
	t.Verdict = notMeasured
	of, ok := r.find(t.Of)
	if !ok {
		return
	}
	value := of.Median
	if t.To != "" {
		to, ok := r.find(t.To)
		if !ok {
			return
		}
		value /= to.Median
	}
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	t.Value, t.Verdict = value, missed
	if t.AtLeast == (value >= t.Limit) || value == t.Limit {
		t.Verdict = reached
	}
}

// ReadFile reads a report that WriteJSON wrote.
func ReadFile(name string) (*Report, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read report %q: %w", name, err)
	}
	return r, nil
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
