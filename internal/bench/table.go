package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable writes all measures, each with its ratio to the baseline and to
// exec if they exist, then the targets, and then what got worse if Compare was called.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\n\n", r.Machine)
	fmt.Fprintln(t, "MEASURE\tSYSTEM\tP50\tP95\tSAMPLES\tTO BASELINE\tTO EXEC")
	previous := ""
	for _, m := range r.Measures {
		what := m.What
		if what == previous {
			what = ""
		}
		previous = m.What
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", what, m.System,
			format(m.Median, m.Unit), format(m.P95, m.Unit), m.Samples, r.ratio(m, baselineName), r.ratio(m, execName))
	}
	if len(r.Targets) > 0 {
		fmt.Fprintln(t, "\nTARGET\tVALUE\tTO REACH\tVERDICT")
	}
	for _, target := range r.Targets {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", target.What, target.value(), target.bound(), target.Verdict)
	}
	if r.Comparison != nil {
		r.Comparison.writeTable(t)
	}
	return t.Flush()
}

// String describes the machine in one line.
func (m Machine) String() string {
	s := fmt.Sprintf("%s, Linux %s, %d CPUs, %s", m.Time.Format("2006-01-02 15:04 MST"), m.Kernel, m.CPUs, m.Go)
	if m.CPU != "" {
		s += ", " + m.CPU
	}
	return s
}

// ratio returns a measure divided by that of another system, as text.
func (r *Report) ratio(m Measure, system string) string {
	other, ok := r.find(key(m.What, system))
	if !ok || other.Median == 0 {
		return "-"
	}
	return times(m.Median / other.Median)
}

func (t *Target) value() string {
	if t.Verdict == notMeasured {
		return "-"
	}
	return t.format(t.Value)
}

func (t *Target) bound() string {
	if t.AtLeast {
		return "at least " + t.format(t.Limit)
	}
	return "at most " + t.format(t.Limit)
}

func (t *Target) format(v float64) string {
	if t.To == "" {
		return format(v, t.Unit)
	}
	return times(v)
}

// times formats a factor with three digits.
func times(v float64) string { return digits(v) + "x" }

// format formats a value with three digits and its unit.
func format(v float64, unit string) string {
	switch {
	case unit == rate:
		return digits(v) + " /s"
	case unit == memory:
		return digits(v/1024) + " KB"
	case v < 1e-3:
		return digits(v*1e6) + " µs"
	case v < 1:
		return digits(v*1e3) + " ms"
	}
	return digits(v) + " s"
}

func digits(v float64) string {
	switch {
	case v > 0 && v < 0.1:
		return fmt.Sprintf("%.4f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
