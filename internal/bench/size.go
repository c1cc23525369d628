package bench

// size contains the numbers of samples and allocations of a run.
type size struct {
	kinds                []string // of networks, the most important first
	systems              []string // that are measured one allocation at a time
	life, dual           rounds   // dual stack: none if 0
	batch, batches       int      // allocations, and repetitions
	removals             int      // at once
	paced                int      // allocations from a pool, 200 per second
	slowBatch            int
	burst, bursts        int
	slowBurst            int
	flat                 []flatSize
	flatRounds           int
	hosts                int // other hosts of a cluster
	connects             int
	connectParts         int // in which connections with and without other mappings alternate
	mappings, slowBefore int // other mappings: for systems with maps, and for those with chains of rules
	dropin               int
	daemon               int
	cpuLives, cpuBlocks  int      // allocations of one sample of processor time, and samples
	many                 manySize // allocations of the daemon
	manyRounds           int
	again                int // DELs that find nothing to remove
	collect, collects    int // allocations of a GC, and repetitions
	heap                 int
	heal                 []int // allocations, ascending
	heals                int   // repetitions
	healLives            int   // ADDs of one sample of CPU time
}

// flatSize are numbers of present allocations, ascending.
type flatSize struct {
	kind    string
	present []int
}

// full is the size of a run whose figures are published.
var full = size{
	kinds: []string{"bridge", "ptp"}, systems: order, connectParts: 10,
	life: rounds{fast: 300, slow: 25}, dual: rounds{fast: 100, slow: 10},
	batch: 100, batches: 10, removals: 1000, paced: 1000, slowBatch: 16, burst: 1000, bursts: 3, slowBurst: 48,
	flat: []flatSize{{"bridge", []int{1000}}, {"ptp", []int{4000, 10000}}}, flatRounds: 100, hosts: 1000,
	connects: 20000, mappings: 10000, slowBefore: 5000, dropin: 25, daemon: 100, cpuLives: 200, cpuBlocks: 7, many: 10000, manyRounds: 50, again: 50, collect: 500, collects: 3, heap: 1000,
	heal: []int{10, 100, 1000}, heals: 3, healLives: 300,
}

// short is the size of a run that only checks that everything works.
var short = size{
	kinds: []string{"bridge", "ptp"}, systems: order, connectParts: 10,
	life: rounds{fast: 60, slow: 5}, dual: rounds{fast: 20, slow: 2},
	batch: 100, batches: 3, removals: 200, paced: 60, slowBatch: 8, burst: 200, bursts: 1, slowBurst: 16,
	flat: []flatSize{{"bridge", []int{200}}, {"ptp", []int{400}}}, flatRounds: 30, hosts: 1000,
	connects: 3000, mappings: 10000, slowBefore: 300, dropin: 5, daemon: 15, cpuLives: 50, cpuBlocks: 3, many: 200, manyRounds: 5, again: 5, collect: 500, collects: 1, heap: 200,
	heal: []int{10, 100}, heals: 1, healLives: 60,
}

// host is the size of a run on a user's host.
var host = size{
	kinds: []string{"ptp"}, systems: []string{baselineName, nativeName, execName},
	life: rounds{fast: 100, slow: 8}, burst: 300, bursts: 2, slowBurst: 16,
	flat: []flatSize{{"ptp", []int{500}}}, flatRounds: 50,
	connects: 4000, connectParts: 4, mappings: 1000, slowBefore: 1000,
}

// shortHost is the size of a quick look at a user's host.
var shortHost = size{
	kinds: host.kinds, systems: host.systems,
	life: rounds{fast: 20, slow: 2}, burst: 50, bursts: 1, slowBurst: 4,
	flat: []flatSize{{"ptp", []int{50}}}, flatRounds: 10,
	connects: 500, connectParts: 1, mappings: 200, slowBefore: 200,
}

// withRounds replaces the number of samples of single operations.
func (s size) withRounds(n int) size {
	if n > 0 {
		s.life = rounds{fast: n, slow: min(s.life.slow, n)}
		s.dual = rounds{fast: n, slow: min(s.dual.slow, n)}
		s.flatRounds = n
		s.dropin = min(s.dropin, n)
		s.daemon = n
		s.manyRounds = n
		s.again = n
	}
	return s
}
