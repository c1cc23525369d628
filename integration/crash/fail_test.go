package crash

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/faultinject"
)

// TestFailsAtEveryPoint has each system call fail by which an operation changes
// something, one at a time. The operation succeeds and has done its work, or fails;
// then the next Teardown leaves nothing.
func TestFailsAtEveryPoint(t *testing.T) {
	for _, part := range failures() {
		t.Run(part.cell.String(), func(t *testing.T) {
			h := newHost(t, part.cell)
			for _, o := range part.operations {
				t.Run(o.name, func(t *testing.T) { h.in(t).failEverywhere(&o) })
			}
		})
	}
}

// fitting is an error that the kernel may answer a call with.
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
			return unix.EPIPE
		}
		return unix.EACCES
	case faultinject.Message:
		return 0 // the answer of an operation that has ended
	}
	return unix.ENOMEM
}

func (h *host) failEverywhere(o *operation) {
	h.t.Helper()
	for at := 1; !h.t.Failed(); at++ {
		if !h.failAt(o, at) {
			return
		}
	}
}

// failAt has one call fail, if there are as many, and judges what comes of it.
func (h *host) failAt(o *operation, at int) (failed bool) {
	h.t.Helper()
	if o.prepare != nil {
		o.prepare(h)
	}
	var point faultinject.Point
	ended := start(h.t, h.request(o.request), func(n int, p faultinject.Point) faultinject.Verdict {
		if n != at {
			return faultinject.Verdict{}
		}
		errno := fitting(p)
		point, failed = p, errno != 0
		return faultinject.Verdict{Errno: errno}
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

// judge finds the answer of an operation true, and then removes the allocation.
func (h *host) judge(o *operation, said *answer) {
	h.t.Helper()
	switch {
	case said.Error == "" && o.request == "setup":
		require.NoError(h.t, h.Check(h.ctx(), h.a))
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

// removes reports whether nothing is left where the operation succeeds.
func (o *operation) removes() bool {
	return o.request == "teardown" || o.request == "recover" || o.request == "gc"
}

func failures() []campaignPart {
	chosen := append(operations[:2:2], operations[3])
	return []campaignPart{
		{cell: cell{engine: "native", main: "bridge"}, operations: chosen},
		{cell: cell{engine: "native", main: "ptp"}, operations: chosen},
		{cell: cell{engine: "native", main: "bridge", mixed: true}, operations: chosen},
		{cell: cell{engine: "exec", main: "bridge", backend: "iptables"}, operations: chosen},
	}
}
