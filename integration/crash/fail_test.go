package crash

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/faultinject"
)

// TestFailsAtEveryPoint fails each changing system call of an operation, or some
// of them, one at a time: see distance. The operation either succeeds and has done its work, or returns an
// error. The next Teardown leaves nothing.
func TestFailsAtEveryPoint(t *testing.T) {
	some := combine([]cell{{engine: "native", main: "bridge"}, {engine: "native", main: "ptp"}}, failing())
	eachPart(t, campaign(some, failing()), func(t *testing.T, p part) {
		h := newHost(t, p.cell)
		for _, o := range operations {
			if p.has(o.name) {
				t.Run(o.name, func(t *testing.T) { h.in(t).failEverywhere(&o) })
			}
		}
	})
}

// failing returns the operations in which calls fail one at a time. It excludes
// the retry, in which a call has failed already.
func failing() []string {
	if stress() {
		return []string{"setup", "setup again", update, limit, limitMore, "teardown", "repair", "recover", "gc"}
	}
	if testing.Short() { // limitMore changes what update and limit change
		return []string{"setup", "setup again", limitMore, "teardown"}
	}
	return []string{"setup", "setup again", update, limit, limitMore, "teardown"}
}

// errnos are the errors with which a call fails, one after the other.
func errnos() []func(faultinject.Point) unix.Errno {
	list := []func(faultinject.Point) unix.Errno{fitting}
	if stress() {
		for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC, unix.ENOMEM, unix.EPERM, unix.EBUSY} {
			list = append(list, func(faultinject.Point) unix.Errno { return errno })
		}
	}
	return list
}

// fitting returns an error that the kernel can return for a call.
func fitting(p faultinject.Point) unix.Errno {
	switch p.Kind {
	case faultinject.File:
		if strings.HasPrefix(p.Call, "unlink") || strings.HasPrefix(p.Call, "utime") {
			return unix.EIO
		}
		return unix.ENOSPC
	case faultinject.Sysctl, faultinject.Mount:
		return unix.EPERM
	case faultinject.Subprocess:
		if p.Object == "pipe" {
			return unix.EIO
		}
		return unix.EACCES
	}
	return unix.ENOMEM
}

func (h *host) failEverywhere(o *operation) {
	h.t.Helper()
	for at := 1; ; at += distance() {
		for _, errno := range errnos() {
			if !h.failAt(o, at, errno) {
				return
			}
		}
	}
}

// failAt fails one call of an operation and judges the result. It returns false
// if the operation has fewer points.
func (h *host) failAt(o *operation, at int, errno func(faultinject.Point) unix.Errno) (failed bool) {
	h.t.Helper()
	if o.prepare != nil {
		o.prepare(h)
	}
	var point faultinject.Point
	ended := start(h.t, h.request(o.request), func(n int, p faultinject.Point) faultinject.Verdict {
		if n != at {
			return faultinject.Verdict{}
		}
		point, failed = p, p.Kind != faultinject.Message // the response of an operation that has ended
		if !failed {
			return faultinject.Verdict{}
		}
		return faultinject.Verdict{Errno: errno(p)}
	})
	ended.requireGone(h.t)
	h.restart()
	defer func() {
		if h.t.Failed() {
			h.t.Logf("in %s point %d (%v) failed, and it answered: %+v\n%s", o.name, at, point, *ended.answer, ended.stderr)
		}
	}()
	h.judge(o, ended.answer)
	return failed
}

// judge checks that the operation's answer is true, and then removes the
// allocation.
func (h *host) judge(o *operation, said *answer) {
	h.t.Helper()
	switch {
	case said.Error == "" && o.request == "setup":
		require.NoError(h.t, h.Check(h.ctx(), h.a))
	case o.request == "limit": // also without a Recover
		require.Equal(h.t, said.Error == "", h.requireLimits())
	case said.Error == "" && o.removes():
		h.requireNothing()
	case o.name == "setup" && !said.Incomplete:
		h.requireNothing()
	}
	if o.heals != nil {
		o.heals(h)
	}
	require.NoError(h.t, h.Teardown(h.ctx(), h.a))
	h.requireNothing()
}

// removes reports whether the operation leaves nothing if it succeeds.
func (o *operation) removes() bool {
	return o.request == "teardown" || o.request == "background" || o.request == "recover" || o.request == "gc"
}
