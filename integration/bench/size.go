package main

// size contains the numbers of samples and allocations of a run.
type size struct {
	life, dual           rounds
	batch, batches       int // allocations, and repetitions
	slowBatch            int
	burst, bursts        int
	slowBurst            int
	flat                 []flatSize
	flatRounds           int
	connects             int
	mappings, slowBefore int // other mappings: for systems with maps, and for those with chains of rules
	dropin               int
	daemon               int
	again                int // DELs that find nothing to remove
	collect, collects    int // allocations of a GC, and repetitions
	heap                 int
}

// flatSize is a number of present allocations.
type flatSize struct {
	kind    string
	present int
}

// full is the size of a run whose figures are published.
var full = size{
	life: rounds{fast: 300, slow: 25}, dual: rounds{fast: 100, slow: 10},
	batch: 100, batches: 10, slowBatch: 16, burst: 1000, bursts: 3, slowBurst: 48,
	flat: []flatSize{{"bridge", 1000}, {"ptp", 4000}}, flatRounds: 100,
	connects: 20000, mappings: 10000, slowBefore: 5000, dropin: 25, daemon: 100, again: 50, collect: 500, collects: 3, heap: 1000,
}

// short is the size of a run that only checks that everything works.
var short = size{
	life: rounds{fast: 60, slow: 5}, dual: rounds{fast: 20, slow: 2},
	batch: 100, batches: 3, slowBatch: 8, burst: 200, bursts: 1, slowBurst: 16,
	flat: []flatSize{{"bridge", 200}, {"ptp", 400}}, flatRounds: 30,
	connects: 3000, mappings: 10000, slowBefore: 300, dropin: 5, daemon: 15, again: 5, collect: 500, collects: 1, heap: 200,
}

// withRounds replaces the number of samples of single operations.
func (s size) withRounds(n int) size {
	if n > 0 {
		s.life = rounds{fast: n, slow: min(s.life.slow, n)}
		s.dual = rounds{fast: n, slow: min(s.dual.slow, n)}
		s.flatRounds = n
		s.dropin = min(s.dropin, n)
		s.daemon = n
		s.again = n
	}
	return s
}
