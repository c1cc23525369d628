package bench

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// medians returns a report with one sample per measure, in one unit.
func medians(unit string, of map[string]map[string]float64) *Report {
	r := &Report{}
	for _, what := range []string{"ADD", "DEL", "first"} {
		for _, system := range []string{baselineName, nativeName, execName} {
			if v, ok := of[what][system]; ok {
				r.add(what, system, unit, samples{v})
			}
		}
	}
	return r
}

func TestCompare(t *testing.T) {
	for name, test := range map[string]struct {
		unit      string
		then, now map[string]map[string]float64
		measures  int
		want      []Worse
	}{
		"the machine is slower": {seconds,
			map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 2}},
			map[string]map[string]float64{"ADD": {baselineName: 3, nativeName: 6}}, 1, []Worse{}},
		"within the tolerance": {seconds,
			map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 2}},
			map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 2.25}}, 1, []Worse{}},
		"better": {seconds,
			map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 2}},
			map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 1}}, 1, []Worse{}},
		"worse, the worst first": {seconds,
			map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 2, execName: 100}, "DEL": {baselineName: 1, nativeName: 1}},
			map[string]map[string]float64{"ADD": {baselineName: 2, nativeName: 5, execName: 200}, "DEL": {baselineName: 2, nativeName: 4}},
			3, []Worse{{"DEL", nativeName, 1, 2, 1}, {"ADD", nativeName, 2, 2.5, 0.25}}},
		"a lower rate": {rate,
			map[string]map[string]float64{"first": {baselineName: 1000, nativeName: 500}},
			map[string]map[string]float64{"first": {baselineName: 1000, nativeName: 400}}, 1, []Worse{{"first", nativeName, 0.5, 0.4, 0.25}}},
		"a higher rate": {rate,
			map[string]map[string]float64{"first": {baselineName: 1000, nativeName: 400}},
			map[string]map[string]float64{"first": {baselineName: 1000, nativeName: 500}}, 1, []Worse{}},
		"nothing to compare": {seconds,
			map[string]map[string]float64{"ADD": {nativeName: 1}, "DEL": {baselineName: 1, nativeName: 1}},
			map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 2}, "first": {baselineName: 1, nativeName: 2}}, 0, []Worse{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := medians(test.unit, test.now)
			r.Compare(medians(test.unit, test.then))
			require.Equal(t, test.measures, r.Comparison.Measures)
			require.Len(t, r.Comparison.Worse, len(test.want))
			for i, want := range test.want {
				is := r.Comparison.Worse[i]
				require.InDeltaSlice(t, []float64{want.Old, want.New, want.Change}, []float64{is.Old, is.New, is.Change}, 1e-9)
				require.Equal(t, []string{want.What, want.System}, []string{is.What, is.System})
			}
		})
	}
}

// TestCompareOutput: the table is at the end of the text, and part of the JSON.
func TestCompareOutput(t *testing.T) {
	for _, test := range []struct {
		name string
		now  float64
		text string
		json string
	}{
		{"worse", 0.003, "\nGOT WORSE  SYSTEM  OLD    NEW    CHANGE\nADD        native  2.00x  3.00x  +50 %\n",
			`{"measures":1,"worse":[{"what":"ADD","system":"native","old":2,"new":3,"change":0.5}]}`},
		{"the same", 0.002, "\nNone of 1 ratios to the baseline got worse by more than 15 %.\n", `{"measures":1,"worse":[]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := medians(seconds, map[string]map[string]float64{"ADD": {baselineName: 0.001, nativeName: test.now}})
			r.Compare(medians(seconds, map[string]map[string]float64{"ADD": {baselineName: 1, nativeName: 2}}))
			var text, written bytes.Buffer
			require.NoError(t, r.WriteTable(&text))
			require.True(t, bytes.HasSuffix(text.Bytes(), []byte(test.text)), text.String())
			require.NoError(t, r.WriteJSON(&written))
			var is struct{ Comparison json.RawMessage }
			require.NoError(t, json.Unmarshal(written.Bytes(), &is))
			require.JSONEq(t, test.json, string(is.Comparison))
		})
	}
}
