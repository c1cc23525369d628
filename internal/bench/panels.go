package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// panel answers one question of the chart, on an axis of its own: times or rates.
type panel struct {
	title, note string
	unit        string
	log         bool // a logarithmic axis
	groups      []panelGroup
}

// panelGroup are the rows of one kind of network, or of one way to remove it.
type panelGroup struct {
	title string
	rows  []panelRow
}

// panelRow is one system's value. With from, it shows the growth from there.
type panelRow struct {
	system    string
	from      float64
	value     float64
	valueText string
}

// panels returns the questions to which the report has answers.
func (r *Report) panels() []panel {
	all := []panel{
		{title: "How long does a start take?", note: "ADD of one allocation, median, logarithmic", unit: seconds, log: true,
			groups: r.groupsOf("ADD, bridge", "bridge", "ADD, ptp", "routed (ptp)")},
		{title: "How long does a stop take?", note: "DEL of one allocation, median, logarithmic", unit: seconds, log: true,
			groups: r.groupsOf("DEL, bridge", "bridge", "DEL, ptp", "routed (ptp)", batchTitle, "bridge, each of 100 at once",
				removeTitle("bridge"), "bridge, until it returns", removeTitle("ptp"), "routed (ptp), until it returns")},
		{title: "How many start per second?", note: fmt.Sprintf("ADDs per second, %d at a time, longer is better", burstAtOnce), unit: rate,
			groups: r.groupsOf(burstTitle("bridge"), "bridge", burstTitle("ptp"), "routed (ptp)")},
		{title: "Does a start get slower with many present?", note: "ADD, median: circle with none, dot with many present", unit: seconds,
			groups: r.growths()},
		{title: "What does a host port cost a connection?", note: "TCP connect, median: circle with 1 mapping, dot with many", unit: seconds,
			groups: r.connects()},
	}
	return slices.DeleteFunc(all, func(p panel) bool { return len(p.groups) == 0 })
}

// groupsOf returns the groups of the measures with the given names, each followed by
// its title. Measures without values are left out.
func (r *Report) groupsOf(names ...string) []panelGroup {
	var groups []panelGroup
	for pair := range slices.Chunk(names, 2) {
		g := panelGroup{title: pair[1]}
		for _, m := range r.of(pair[0]) {
			g.rows = append(g.rows, panelRow{system: m.System, value: m.Median, valueText: format(m.Median, m.Unit)})
		}
		if len(g.rows) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// of returns the measures with a name that have a value.
func (r *Report) of(what string) []Measure {
	var found []Measure
	for _, m := range r.Measures {
		if m.What == what && m.Median > 0 {
			found = append(found, m)
		}
	}
	return found
}

// growths returns a group for each kind of network that was measured with none and
// with many allocations present.
func (r *Report) growths() []panelGroup {
	var groups []panelGroup
	for _, kind := range []string{"bridge", "ptp"} {
		what, many := r.counted("ADD, "+kind+", ", " present")
		g := panelGroup{title: fmt.Sprintf("%s, %d present", map[string]string{"bridge": "bridge", "ptp": "routed (ptp)"}[kind], many)}
		for _, m := range r.of(what) {
			g.grow(r, m, flatTitle("ADD", kind, 0))
		}
		if len(g.rows) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// connects returns a group for each number of other mappings.
func (r *Report) connects() []panelGroup {
	var groups []panelGroup
	for _, m := range r.Measures {
		n, ok := countIn(m.What, "TCP connect, ", " other mappings")
		if !ok || !(m.Median > 0) {
			continue
		}
		title := fmt.Sprintf("%d other mappings", n)
		if len(groups) == 0 || groups[len(groups)-1].title != title {
			groups = append(groups, panelGroup{title: title})
		}
		groups[len(groups)-1].grow(r, m, packetTitle(1))
	}
	return slices.DeleteFunc(groups, func(g panelGroup) bool { return len(g.rows) == 0 })
}

// grow adds a row from the system's measure before to the measure m.
func (g *panelGroup) grow(r *Report, m Measure, before string) {
	from, ok := r.find(key(before, m.System))
	if !ok || !(from.Median > 0) {
		return
	}
	text := fmt.Sprintf("%s (%s)", format(m.Median, m.Unit), times(m.Median/from.Median))
	g.rows = append(g.rows, panelRow{system: m.System, from: from.Median, value: m.Median, valueText: text})
}

// counted returns the name of the measure with the largest number between a prefix
// and a suffix, and that number.
func (r *Report) counted(prefix, suffix string) (what string, most int) {
	for _, m := range r.Measures {
		if n, ok := countIn(m.What, prefix, suffix); ok && n > most {
			what, most = m.What, n
		}
	}
	return what, most
}

// countIn returns the number between a prefix and a suffix.
func countIn(s, prefix, suffix string) (int, bool) {
	rest, ok := strings.CutPrefix(s, prefix)
	text, ends := strings.CutSuffix(rest, suffix)
	n, err := strconv.Atoi(text)
	return n, ok && ends && err == nil
}
