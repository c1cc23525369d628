package heal

import "time"

const (
	// freeRepairs is the number of repairs in a row that are made at once: a restart of
	// a firewall removes its rules more than once.
	freeRepairs = 3
	firstWait   = time.Second
	longestWait = time.Minute
	// calmTime is the time after which a repair begins a new row.
	calmTime = 10 * time.Second
	// idleWait is the time between two comparisons of which the first one has found
	// nothing missing.
	idleWait = 250 * time.Millisecond
)

// backoff tells when a kind of change may lead to the next repair.
type backoff struct {
	last    time.Time     // of the last comparison
	repairs int           // in a row
	wait    time.Duration // after the last comparison
}

// due returns the time of the next comparison for a change that was noticed now.
func (b *backoff) due(now time.Time) time.Time {
	if next := b.last.Add(b.wait); next.After(now) {
		return next
	}
	return now
}

// note records a comparison, and whether something was missing. It reports whether the
// changes are so many by now that the next one has to wait.
func (b *backoff) note(now time.Time, repaired bool) (backsOff bool) {
	if now.Sub(b.last) > max(calmTime, 2*b.wait) {
		b.repairs = 0
	}
	b.last, b.wait = now, idleWait
	if !repaired {
		return false
	}
	b.repairs++
	b.wait = 0
	if b.repairs < freeRepairs {
		return false
	}
	b.wait = min(firstWait<<min(b.repairs-freeRepairs, 10), longestWait)
	return true
}
