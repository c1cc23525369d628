package bench

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testReport returns a report with round figures.
func testReport() *Report {
	r := &Report{Machine: Machine{
		Time: time.Date(2031, 2, 3, 4, 5, 0, 0, time.UTC), Kernel: "6.18", CPUs: 2, Go: "go1.26", CPU: "Chip <1>",
	}}
	r.add("ADD", baselineName, seconds, samples{0.0005, 0.0004, 0.0009})
	r.add("ADD", nativeName, seconds, samples{0.0008, 0.0009, 0.001})
	r.add("ADD", execName, seconds, samples{0.1})
	r.add("burst", baselineName, rate, samples{2000})
	r.add("heap", nativeName, memory, samples{3 << 10})
	return r
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name    string
		target  Target
		value   float64
		verdict string
	}{
		{"below", Target{Of: "ADD/native", To: "ADD/baseline", Limit: 2}, 1.8, reached},
		{"at the limit", Target{Of: "heap/native", Limit: 3 << 10}, 3 << 10, reached},
		{"above", Target{Of: "ADD/native", To: "ADD/baseline", Limit: 1.7}, 1.8, missed},
		{"enough", Target{Of: "ADD/exec", To: "ADD/native", Limit: 100, AtLeast: true}, 0.1 / 0.0009, reached},
		{"just enough", Target{Of: "heap/native", Limit: 3 << 10, AtLeast: true}, 3 << 10, reached},
		{"too little", Target{Of: "ADD/exec", To: "ADD/native", Limit: 200, AtLeast: true}, 0.1 / 0.0009, missed},
		{"alone", Target{Of: "heap/native", Limit: 4 << 10}, 3 << 10, reached},
		{"nothing to divide", Target{Of: "DEL/native", To: "ADD/baseline", Limit: 2}, 0, notMeasured},
		{"nothing to divide by", Target{Of: "ADD/native", To: "ADD/go-cni", Limit: 2}, 0, notMeasured},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := testReport()
			r.judge([]Target{test.target})
			require.InDelta(t, test.value, r.Targets[0].Value, 1e-9)
			require.Equal(t, test.verdict, r.Targets[0].Verdict)
		})
	}
}

func TestTable(t *testing.T) {
	r := testReport()
	r.judge([]Target{
		{What: "ADD: native to baseline", Of: "ADD/native", To: "ADD/baseline", Limit: 2},
		{What: "ADD: exec to native", Of: "ADD/exec", To: "ADD/native", Limit: 200, AtLeast: true},
		{What: "heap", Of: "heap/native", Limit: 4 << 10, Unit: memory},
		{What: "DEL", Of: "DEL/native", To: "DEL/baseline", Limit: 2},
	})
	var b bytes.Buffer
	require.NoError(t, r.WriteTable(&b))
	require.Equal(t, `2031-02-03 04:05 UTC, Linux 6.18, 2 CPUs, go1.26, Chip <1>

MEASURE  SYSTEM    P50      P95      SAMPLES  TO BASELINE  TO EXEC
ADD      baseline  500 µs   900 µs   3        1.00x        0.0050x
         native    900 µs   1.00 ms  3        1.80x        0.0090x
         exec      100 ms   100 ms   1        200x         1.00x
burst    baseline  2000 /s  2000 /s  1        1.00x        -
heap     native    3.00 KB  3.00 KB  1        -            -

TARGET                   VALUE    TO REACH         VERDICT
ADD: native to baseline  1.80x    at most 2.00x    reached
ADD: exec to native      111x     at least 200x    missed
heap                     3.00 KB  at most 4.00 KB  reached
DEL                      -        at most 2.00x    not measured
`, trimLines(b.String()))
}

// trimLines removes the padding at the ends of lines.
func trimLines(s string) string {
	var out []byte
	for line := range bytes.Lines([]byte(s)) {
		out = append(append(out, bytes.TrimRight(line, " \n")...), '\n')
	}
	return string(out)
}

func TestJSON(t *testing.T) {
	r := testReport()
	var b bytes.Buffer
	require.NoError(t, r.WriteJSON(&b))
	var back Report
	require.NoError(t, json.Unmarshal(b.Bytes(), &back))
	require.Equal(t, *r, back)
}

// TestTargetsHaveMeasures checks that targets refer to measures by the names
// under which the measurements add them.
func TestTargetsHaveMeasures(t *testing.T) {
	r := &Report{}
	for _, kind := range []string{"bridge", "ptp"} {
		for _, system := range order {
			r.add("ADD, "+kind, system, seconds, samples{1})
			r.add("DEL, "+kind, system, seconds, samples{1})
			r.add(burstTitle(kind), system, rate, samples{1})
		}
		for _, system := range []string{baselineName, acknowledgedName} {
			r.add(removeTitle(kind), system, seconds, samples{1})
			r.add(removalsTitle(kind, full.removals), system, rate, samples{1})
		}
		for _, system := range []string{baselineName, pooledName, execName} {
			r.add(takeTitle(kind), system, seconds, samples{1})
		}
		for _, hosts := range []int{0, full.hosts} {
			r.add(clusterTitle("ADD", kind, hosts), nativeName, seconds, samples{1})
		}
		r.add(refillTitle(kind), pooledName, rate, samples{1})
		for _, system := range []string{openName, labelsName, sharedName, ownName} {
			r.add(policyTitle("ADD", kind), system, seconds, samples{1})
		}
		r.add(pacedWorstTitle(kind), pooledName, seconds, samples{1})
	}
	for _, f := range full.flat {
		for _, operation := range []string{"ADD", "DEL"} {
			r.add(flatTitle(operation, f.kind, 0), nativeName, seconds, samples{1})
			for _, present := range f.present {
				r.add(flatTitle(operation, f.kind, present), nativeName, seconds, samples{1})
			}
		}
	}
	r.add(reusedTitle, baselineName, seconds, samples{1})
	r.add(reusedTitle, nativeName, seconds, samples{1})
	r.add(policyConnectTitle, openName, seconds, samples{1})
	r.add(policyConnectTitle, crowdedName, seconds, samples{1})
	r.add(batchTitle, baselineName, seconds, samples{1})
	r.add(batchTitle, nativeName, seconds, samples{1})
	r.add(packetTitle(1), nativeName, seconds, samples{1})
	r.add(packetTitle(full.mappingsOf(nativeName)), nativeName, seconds, samples{1})
	for _, name := range []string{referenceName, allocnetName, daemonName} {
		r.add(processTitle, name, seconds, samples{1})
		r.add(processesTitle, name, seconds, samples{1})
	}
	for _, n := range full.heal {
		r.add(healTitle(n), daemonName, seconds, samples{1})
	}
	r.add(throughTitle, daemonName, seconds, samples{1})
	r.add(crowdTitle, daemonName, rate, samples{1})
	r.add(removedTitle, daemonName, seconds, samples{1})
	for _, name := range []string{nativeName, apiName, throughName} {
		r.add(cpuTitle, name, seconds, samples{1})
	}
	for _, title := range []string{
		ownedTitle("ADD", 0), ownedTitle("DEL", 0), ownedTitle("ADD", full.many), ownedTitle("DEL", full.many),
		full.many.listTitle(), full.many.restartTitle(),
	} {
		r.add(title, daemonName, seconds, samples{1})
	}
	r.add(beyondTitle, daemonName, seconds, samples{1})
	r.add(emptyTitle, emptyName, seconds, samples{1})
	r.add(againTitle, nativeName, seconds, samples{1})
	r.add(unknownTitle, nativeName, seconds, samples{1})
	r.add(collectTitle(full.collect), nativeName, rate, samples{1})
	r.add(memoryTitle, nativeName, memory, samples{1})
	r.judge(targets(&full))
	require.NotEmpty(t, r.Targets)
	for _, target := range r.Targets {
		require.NotEqual(t, notMeasured, target.Verdict, target.What)
	}
}
