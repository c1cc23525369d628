package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chartedReport has an answer to every question.
func chartedReport() *Report {
	r := testReport()
	r.Measures = nil
	for _, kind := range []string{"bridge", "ptp"} {
		r.add("ADD, "+kind, baselineName, seconds, samples{0.0005})
		r.add("ADD, "+kind, nativeName, seconds, samples{0.0009})
		r.add("ADD, "+kind, execName, seconds, samples{0.1})
		r.add("DEL, "+kind, nativeName, seconds, samples{0.02})
		r.add(burstTitle(kind), nativeName, rate, samples{1250})
		r.add(flatTitle("ADD", kind, 0), nativeName, seconds, samples{0.001})
		r.add(flatTitle("ADD", kind, 700), nativeName, seconds, samples{0.0015})
	}
	r.add(removeTitle("ptp"), acknowledgedName, seconds, samples{0.002})
	r.add(packetTitle(1), nativeName, seconds, samples{50e-6})
	r.add(packetTitle(1), execName, seconds, samples{50e-6})
	r.add(packetTitle(300), nativeName, seconds, samples{50e-6})
	r.add(packetTitle(200), execName, seconds, samples{200e-6})
	r.add(memoryTitle, nativeName, memory, samples{3 << 10})
	return r
}

func TestChart(t *testing.T) {
	c := drawn(t, chartedReport())
	require.Equal(t, []string{
		"How long does a start take?", "How long does a stop take?", "How many start per second?",
		"Does a start get slower with many present?", "What does a host port cost a connection?",
	}, c.texts["q"])
	require.Equal(t, []string{
		"500 µs", "900 µs", "100 ms", "500 µs", "900 µs", "100 ms", "20.0 ms", "20.0 ms", "2.00 ms", "1250 /s", "1250 /s",
		"1.50 ms (1.50x)", "1.50 ms (1.50x)", "50.0 µs (1.00x)", "200 µs (4.00x)",
	}, c.texts["v"])
	require.Subset(t, c.texts["g"], []string{"bridge", "routed (ptp)", "bridge, 700 present", "routed (ptp), until it returns", "300 other mappings", "200 other mappings",
		baselineName, nativeName, execName})
	require.NotContains(t, c.texts["g"], goCNIName, "it was not measured")
	require.Subset(t, c.texts["m"], []string{"bare kernel calls", "1 ms", "10 ms", "1000"})
	require.Contains(t, c.style, "prefers-color-scheme:dark")
	for _, l := range legend {
		require.Equal(t, 2, strings.Count(c.style, "."+l.class+"{"), "a colour for each mode")
	}
}

// TestChartOfAPart: a question without an answer has no panel.
func TestChartOfAPart(t *testing.T) {
	r := &Report{}
	require.Empty(t, drawn(t, r).texts["q"])
	r.add("ADD, ptp", nativeName, seconds, samples{0.001})
	r.add(flatTitle("ADD", "ptp", 10), nativeName, seconds, samples{0.001}) // but not with none
	r.add(packetTitle(10), nativeName, seconds, samples{0.001})
	r.add(memoryTitle, nativeName, memory, samples{1})
	c := drawn(t, r)
	require.Equal(t, []string{"How long does a start take?"}, c.texts["q"])
	require.Equal(t, []string{"1.00 ms"}, c.texts["v"])
}

// TestResultsAreDrawn: the published chart shows the published results. After a new
// run: go run ./integration/bench -from integration/bench/results.json -svg
// integration/bench/results.svg
func TestResultsAreDrawn(t *testing.T) {
	const dir = "../../integration/bench/"
	r, err := ReadFile(dir + "results.json")
	require.NoError(t, err)
	require.Len(t, drawn(t, r).texts["q"], 5)
	var want bytes.Buffer
	require.NoError(t, r.WriteChart(&want))
	got, err := os.ReadFile(dir + "results.svg")
	require.NoError(t, err)
	require.Equal(t, want.String(), string(got))
}

func TestAxis(t *testing.T) {
	with := func(log bool, values ...float64) axis {
		p := panel{log: log, groups: []panelGroup{{}}}
		for _, v := range values {
			p.groups[0].rows = append(p.groups[0].rows, panelRow{value: v})
		}
		return p.axis()
	}
	a := with(true, 0.0005, 0.1)
	require.InDelta(t, rowLeft, a.x(1e-4), 1e-6)
	require.InDelta(t, rowRight, a.x(1e-1), 1e-6)
	require.InDelta(t, rowLeft+(rowRight-rowLeft)/3., a.x(1e-3), 1e-6)
	require.Len(t, a.ticks, 4)
	require.Len(t, with(true, 1e-3).ticks, 2, "at least one decade")

	a = with(false, 364, 1543)
	require.InDeltaSlice(t, []float64{0, 500, 1000, 1500, 2000}, a.ticks, 1e-6)
	require.InDelta(t, rowLeft, a.x(0), 1e-6)
	require.InDelta(t, rowRight, a.x(2000), 1e-6)
	require.InDeltaSlice(t, []float64{0, 0.001, 0.002, 0.003}, with(false, 0.003).ticks, 1e-9)
	for most := 1e-7; most < 1e5; most *= 1.01 {
		a := with(false, most)
		require.GreaterOrEqual(t, a.to, most*(1-almost))
		require.LessOrEqual(t, a.to, most*2)
		require.GreaterOrEqual(t, len(a.ticks), 3)
		require.LessOrEqual(t, len(a.ticks), 6, "their labels fit")
	}
}

func TestTickLabel(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1e-7: "100 ns", 1e-6: "1 µs", 1e-4: "100 µs", 1e-3: "1 ms", 0.0025: "2.5 ms", 0.1: "100 ms", 1: "1 s"} {
		require.Equal(t, want, tickLabel(v, seconds))
	}
	require.Equal(t, "2000", tickLabel(2000, rate))
}

// chart is what a reader finds in a drawing.
type chart struct {
	texts map[string][]string // by class
	style string
}

// drawn parses the chart of a report, which must be well-formed, fit into its frame and
// be at most 900 pixels high.
func drawn(t *testing.T, r *Report) *chart {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.WriteChart(&b))
	require.NotRegexp(t, regexp.MustCompile(`NaN|Inf`), b.String())
	c := &chart{texts: map[string][]string{}}
	height := 0.
	var inside []xml.StartElement
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return c
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			inside = append(inside, token.Copy())
			if token.Name.Local == "svg" {
				height = number(t, token, "height")
				require.LessOrEqual(t, height, 900.)
			}
			for _, name := range []string{"y", "y1", "y2", "cy"} {
				require.LessOrEqual(t, number(t, token, name), height)
			}
			for _, name := range []string{"x", "x1", "x2", "cx"} {
				require.LessOrEqual(t, number(t, token, name), float64(chartWidth))
			}
		case xml.EndElement:
			inside = inside[:len(inside)-1]
		case xml.CharData:
			if len(inside) == 0 {
				continue
			}
			switch e := inside[len(inside)-1]; e.Name.Local {
			case "style":
				c.style = string(token)
			case "text", "tspan":
				class := attribute(e, "class")
				c.texts[class] = append(c.texts[class], string(token))
			}
		}
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// number returns an attribute of an element, or 0 if it has none.
func number(t *testing.T, e xml.StartElement, name string) float64 {
	t.Helper()
	text := attribute(e, name)
	if text == "" {
		return 0
	}
	v, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return v
}
