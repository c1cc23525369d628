package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Sizes of the chart, in pixels.
const (
	chartWidth  = 1000
	chartLeft   = 330 // where bars begin
	chartRight  = 870 // where the longest bar ends; its value follows
	chartTop    = 84
	barHeight   = 15
	barGap      = 3
	groupGap    = 14
	chartBottom = 40
)

// colours are the colours of the systems' bars.
var colours = map[string]string{
	baselineName: "#9aa5b1", nativeName: "#1f7a5c", allocnetName: "#1f7a5c",
	execName: "#d9822b", goCNIName: "#b3541e", referenceName: "#b3541e",
}

// bars are the bars of one measure.
type bars struct {
	what string
	all  []Measure
}

// charted returns the measures that have a time. For a rate, it is the time of
// one operation.
func (r *Report) charted() []bars {
	var groups []bars
	for _, m := range r.Measures {
		if m.Unit == memory || !(m.Median > 0) {
			continue
		}
		if len(groups) == 0 || groups[len(groups)-1].what != m.What {
			groups = append(groups, bars{what: m.What})
		}
		last := &groups[len(groups)-1]
		last.all = append(last.all, m)
	}
	return groups
}

// duration returns the time that a bar shows.
func (m *Measure) duration() float64 {
	if m.Unit == rate {
		return 1 / m.Median
	}
	return m.Median
}

// scale maps times to pixels on a logarithmic axis of whole decades.
type scale struct{ from, to int }

func scaleOf(groups []bars) scale {
	least, most := math.Inf(1), math.Inf(-1)
	for _, g := range groups {
		for _, m := range g.all {
			least, most = min(least, m.duration()), max(most, m.duration())
		}
	}
	if math.IsInf(least, 0) {
		return scale{-6, 0}
	}
	// math.Log10 of a power of ten may not be an exact integer.
	const almost = 1e-9
	s := scale{int(math.Floor(math.Log10(least) + almost)), int(math.Ceil(math.Log10(most) - almost))}
	if s.to <= s.from {
		s.to = s.from + 1
	}
	return s
}

func (s scale) x(v float64) float64 {
	part := (math.Log10(v) - float64(s.from)) / float64(s.to-s.from)
	return chartLeft + part*(chartRight-chartLeft)
}

// writeChart writes the times as horizontal bars on a logarithmic axis.
func (r *Report) writeChart(w io.Writer) error {
	groups := r.charted()
	axis := scaleOf(groups)
	height := chartTop + chartBottom
	for _, g := range groups {
		height += len(g.all)*(barHeight+barGap) + groupGap
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="DejaVu Sans, Verdana, sans-serif" font-size="12">`+"\n", chartWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fdfdfb"/>`+"\n", chartWidth, height)
	text(&b, 20, 28, "An allocation's network: median times on a logarithmic axis, shorter is better", `font-size="17" font-weight="bold"`)
	text(&b, 20, 48, r.Machine.String(), `fill="#667"`)
	drawAxis(&b, axis, height)
	y := chartTop
	for _, g := range groups {
		y = drawBars(&b, axis, g, y) + groupGap
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func text(b *strings.Builder, x, y float64, s, attributes string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(s))
}

// drawAxis draws a line and a label for each decade.
func drawAxis(b *strings.Builder, axis scale, height int) {
	for decade := axis.from; decade <= axis.to; decade++ {
		v := math.Pow10(decade)
		x := axis.x(v)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#dde"/>`+"\n", x, chartTop-8, x, height-chartBottom+4)
		text(b, x, chartTop-14, decadeLabel(decade), `text-anchor="middle" fill="#667"`)
		text(b, x, float64(height-chartBottom+20), decadeLabel(decade), `text-anchor="middle" fill="#667"`)
	}
}

// decadeLabel returns a power of ten in seconds, without decimals.
func decadeLabel(decade int) string {
	switch {
	case decade < -6:
		return fmt.Sprintf("%g ns", math.Pow10(decade+9))
	case decade < -3:
		return fmt.Sprintf("%g µs", math.Pow10(decade+6))
	case decade < 0:
		return fmt.Sprintf("%g ms", math.Pow10(decade+3))
	}
	return fmt.Sprintf("%g s", math.Pow10(decade))
}

// drawBars draws the bars of one measure and returns the position below them.
func drawBars(b *strings.Builder, axis scale, g bars, y int) int {
	for i, m := range g.all {
		middle := float64(y) + barHeight - 3.5
		if i == 0 {
			text(b, chartLeft-90, middle, g.what, `text-anchor="end" font-weight="bold" font-size="11"`)
		}
		text(b, chartLeft-8, middle, shortName(m.System), `text-anchor="end" fill="#445" font-size="11"`)
		colour, ok := colours[m.System]
		if !ok {
			colour = "#667"
		}
		end := axis.x(m.duration())
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", chartLeft, y, max(end-chartLeft, 1), barHeight, colour)
		text(b, end+6, middle, format(m.Median, m.Unit), `font-size="11"`)
		y += barHeight + barGap
	}
	return y
}

// shortName returns a short form of a system's name.
func shortName(system string) string {
	name, _, _ := strings.Cut(system, " ")
	name, _, _ = strings.Cut(name, "-plugins")
	return name
}
