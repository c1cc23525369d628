package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// tolerance is how much worse a ratio may be before Compare lists it.
const tolerance = 0.15

// Comparison has what got worse since a recorded report.
type Comparison struct {
	// Measures is the number of measures of which both reports have a ratio to the baseline.
	Measures int     `json:"measures"`
	Worse    []Worse `json:"worse"`
}

// Worse is a measure whose ratio to the baseline of the same run got worse.
type Worse struct {
	What   string  `json:"what"`
	System string  `json:"system"`
	Old    float64 `json:"old"`
	New    float64 `json:"new"`
	// Change is by how much it got worse, as a part of the better ratio: 0.2 is a fifth longer, or
	// larger, or for a rate a sixth lower.
	Change float64 `json:"change"`
}

// Compare compares the ratios of all systems to the baseline with those of a recorded report, and keeps
// those that got worse by more than 15 percent, the worst first. Measures that one of the reports lacks, or that
// have no baseline, are not compared.
func (r *Report) Compare(recorded *Report) {
	c := &Comparison{Worse: []Worse{}}
	for _, m := range r.Measures {
		now, measured := r.toBaseline(m)
		before, known := recorded.find(key(m.What, m.System))
		if !measured || !known {
			continue
		}
		then, ok := recorded.toBaseline(*before)
		if !ok {
			continue
		}
		c.Measures++
		change := now/then - 1
		if m.Unit == rate {
			change = then/now - 1
		}
		if change > tolerance {
			c.Worse = append(c.Worse, Worse{What: m.What, System: m.System, Old: then, New: now, Change: change})
		}
	}
	slices.SortStableFunc(c.Worse, func(a, b Worse) int { return cmp.Compare(b.Change, a.Change) })
	r.Comparison = c
}

// toBaseline returns the ratio of a measure to that of the baseline; false if there is none.
func (r *Report) toBaseline(m Measure) (float64, bool) {
	base, ok := r.find(key(m.What, baselineName))
	if !ok || m.System == baselineName || base.Median <= 0 || m.Median <= 0 {
		return 0, false
	}
	return m.Median / base.Median, true
}

// writeTable writes what got worse.
func (c *Comparison) writeTable(w io.Writer) {
	if len(c.Worse) == 0 {
		fmt.Fprintf(w, "\nNone of %d ratios to the baseline got worse by more than %.0f %%.\n", c.Measures, 100*tolerance)
		return
	}
	fmt.Fprintln(w, "\nGOT WORSE\tSYSTEM\tOLD\tNEW\tCHANGE")
	for _, one := range c.Worse {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t+%.0f %%\n", one.What, one.System, times(one.Old), times(one.New), 100*one.Change)
	}
}
