package bench

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
)

// Sizes of the chart, in pixels. It is as wide as a README.
const (
	chartWidth  = 830
	chartMargin = 12
	chartTop    = 92 // below title, machine and legend
	panelGap    = 14
	panelWidth  = (chartWidth - 2*chartMargin - panelGap) / 2
	panelHead   = 60 // title, note and the axis's labels
	panelFoot   = 10
	groupHead   = 18
	rowHeight   = 15
	rowLeft     = 66  // where rows begin in a panel, after the name of the system
	rowRight    = 290 // where the axis ends; values follow
)

// legend has the systems in the chart's order, and what they are.
var legend = []struct {
	system, class, text string
	width               int
}{
	{baselineName, "baseline", "bare kernel calls", 190},
	{nativeName, "native", "allocnet", 130},
	{execName, "exec", "allocnet running plugin binaries", 255},
	{goCNIName, "gocni", "go-cni running plugin binaries", 0},
}

// chartStyle has the colours of both modes. Browsers apply the second half to an image
// if the reader prefers dark pages.
const chartStyle = `<style>
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",Verdana,sans-serif;font-size:11px;fill:#1f2328}
.h{font-size:17px;font-weight:600}.q{font-size:13px;font-weight:600}.g{font-weight:600}.m{fill:#59636e}
.bg{fill:#ffffff}.card{fill:#f6f8fa;stroke:#d1d9e0}.grid{stroke:#d1d9e0}
.baseline{fill:#818b98;stroke:#818b98}.native{fill:#0969da;stroke:#0969da}.exec{fill:#e08600;stroke:#e08600}.gocni{fill:#a8438f;stroke:#a8438f}
.o{fill:#f6f8fa}
@media (prefers-color-scheme:dark){
text{fill:#f0f6fc}.m{fill:#9198a1}
.bg{fill:#0d1117}.card{fill:#151b23;stroke:#3d444d}.grid{stroke:#3d444d}
.baseline{fill:#9198a1;stroke:#9198a1}.native{fill:#58a6ff;stroke:#58a6ff}.exec{fill:#f0a030;stroke:#f0a030}.gocni{fill:#db7bc4;stroke:#db7bc4}
.o{fill:#151b23}
}
</style>
`

// drawing collects the elements of an SVG.
type drawing struct{ strings.Builder }

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(x, y float64, class, s string) {
	d.add(`<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, class, html.EscapeString(s))
}

// WriteChart writes an SVG with one panel for each question that the report answers.
// It is at most 900 pixels high, and follows the reader's preference for dark pages.
func (r *Report) WriteChart(w io.Writer) error {
	panels := r.panels()
	y, bottom := [2]int{chartTop, chartTop}, chartTop
	var body drawing
	for _, p := range panels {
		column := 0
		if y[1] < y[0] {
			column = 1
		}
		body.panel(p, chartMargin+column*(panelWidth+panelGap), y[column])
		y[column] += p.height() + panelGap
		bottom = max(bottom, y[column])
	}
	height := bottom - panelGap + chartMargin
	var d drawing
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`, chartWidth, height, chartWidth, height)
	d.add(`<title>What the network of an allocation costs</title>`)
	d.WriteString(chartStyle)
	d.add(`<rect class="bg" width="%d" height="%d"/>`, chartWidth, height)
	d.text(chartMargin, 28, "h", "What the network of an allocation costs")
	d.text(chartMargin, 47, "m", r.Machine.String())
	d.legend(panels)
	_, err := io.WriteString(w, d.String()+body.String()+"</svg>\n")
	return err
}

// legend explains the systems of the panels.
func (d *drawing) legend(panels []panel) {
	x := float64(chartMargin)
	for _, l := range legend {
		if !slices.ContainsFunc(panels, func(p panel) bool { return p.has(l.system) }) {
			continue
		}
		d.add(`<circle class="%s" cx="%.1f" cy="70" r="5"/>`, l.class, x+6)
		d.add(`<text x="%.1f" y="74"><tspan class="g">%s</tspan> <tspan class="m">%s</tspan></text>`, x+16, l.system, l.text)
		x += float64(l.width)
	}
}

func (p *panel) has(system string) bool {
	return slices.ContainsFunc(p.groups, func(g panelGroup) bool {
		return slices.ContainsFunc(g.rows, func(r panelRow) bool { return r.system == system })
	})
}

func (p *panel) height() int {
	height := panelHead + panelFoot
	for _, g := range p.groups {
		height += groupHead + len(g.rows)*rowHeight
	}
	return height
}

// panel draws a panel at a position.
func (d *drawing) panel(p panel, left, top int) {
	height := p.height()
	x, y := float64(left), float64(top)
	d.add(`<rect class="card" x="%d.5" y="%d.5" width="%d" height="%d" rx="6"/>`, left, top, panelWidth-1, height-1)
	d.text(x+10, y+20, "q", p.title)
	d.text(x+10, y+36, "m", p.note)
	axis := p.axis()
	for _, tick := range axis.ticks {
		at := x + axis.x(tick)
		d.add(`<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, at, top+panelHead, at, top+height-panelFoot)
		d.add(`<text class="m" text-anchor="middle" x="%.1f" y="%d">%s</text>`, at, top+panelHead-6, tickLabel(tick, p.unit))
	}
	y += panelHead
	for _, g := range p.groups {
		d.text(x+10, y+13, "g", g.title)
		y += groupHead
		for _, row := range g.rows {
			d.row(row, axis, x, y)
			y += rowHeight
		}
	}
}

// classOf returns the class of a system's colour.
func classOf(system string) string {
	if system == acknowledgedName {
		system = nativeName
	}
	for _, l := range legend {
		if l.system == system {
			return l.class
		}
	}
	return "m"
}

// row draws one system's value: a line and a dot, from a circle if it has grown.
func (d *drawing) row(row panelRow, axis axis, x, y float64) {
	class := classOf(row.system)
	middle, from, to := y+rowHeight/2, x+rowLeft, x+axis.x(row.value)
	d.add(`<text class="m" text-anchor="end" x="%.1f" y="%.1f">%s</text>`, x+rowLeft-8, y+11, html.EscapeString(shortName(row.system)))
	if row.from > 0 {
		from = x + axis.x(row.from)
	}
	d.add(`<line class="%s" stroke-width="3" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, from, middle, to, middle)
	if row.from > 0 {
		d.add(`<circle class="%s o" stroke-width="2" cx="%.1f" cy="%.1f" r="4.5"/>`, class, from, middle)
	}
	d.add(`<circle class="%s" cx="%.1f" cy="%.1f" r="4.5"/>`, class, to, middle)
	d.text(max(from, to)+10, y+11, "v", row.valueText)
}

// axis maps values to pixels.
type axis struct {
	log      bool
	from, to float64 // at the ends; with log, the exponents
	ticks    []float64
}

// axis returns the axis of a panel: whole decades, or from 0 to a round number.
func (p *panel) axis() axis {
	least, most := math.Inf(1), 0.
	for _, g := range p.groups {
		for _, row := range g.rows {
			least, most = min(least, row.value), max(most, row.value, row.from)
		}
	}
	if p.log {
		return decades(least, most)
	}
	step := stepOf(most)
	last := math.Ceil(most/step - almost)
	a := axis{to: last * step}
	for i := range int(last) + 1 {
		a.ticks = append(a.ticks, float64(i)*step)
	}
	return a
}

// almost is the tolerance for values that are computed from powers of ten.
const almost = 1e-9

// stepOf returns the smallest round step of which at most five lead to a value.
func stepOf(most float64) float64 {
	step := math.Pow10(int(math.Floor(math.Log10(most))) - 1)
	for _, part := range []float64{2, 5, 10, 20, 50} {
		if most/(step*part) <= 5+almost {
			return step * part
		}
	}
	return step * 100
}

// decades returns a logarithmic axis that has both values.
func decades(least, most float64) axis {
	// math.Log10 of a power of ten may not be an exact integer.
	a := axis{log: true, from: math.Floor(math.Log10(least) + almost), to: math.Ceil(math.Log10(most) - almost)}
	a.to = max(a.to, a.from+1)
	for decade := a.from; decade <= a.to; decade++ {
		a.ticks = append(a.ticks, math.Pow10(int(decade)))
	}
	return a
}

// x returns the position of a value within its panel.
func (a axis) x(v float64) float64 {
	if a.log {
		v = math.Log10(v)
	}
	return rowLeft + (v-a.from)/(a.to-a.from)*(rowRight-rowLeft)
}

// tickLabel returns a round value without needless digits.
func tickLabel(v float64, unit string) string {
	digits := func(v float64) string { return fmt.Sprintf("%.3g", v) }
	switch {
	case v == 0:
		return "0"
	case unit == rate:
		return fmt.Sprintf("%.0f", v)
	case v < 0.9999e-6:
		return digits(v*1e9) + " ns"
	case v < 0.9999e-3:
		return digits(v*1e6) + " µs"
	case v < 0.9999:
		return digits(v*1e3) + " ms"
	}
	return digits(v) + " s"
}

// shortName returns a name that fits before a row.
func shortName(system string) string {
	if system == acknowledgedName {
		return nativeName
	}
	return system
}
