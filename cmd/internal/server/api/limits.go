package api

import (
	"cmp"
	"time"
)

// Limits bound the load that clients can cause. Zero values stand for the defaults.
type Limits struct {
	// Operations is the maximum number of concurrent operations; default 32. An
	// operation that runs longer than SlotTimeout (default 5 s) no longer counts: it
	// waits for a plugin and must not block others.
	Operations  int
	SlotTimeout time.Duration
	// Queue is the maximum number of further operations, which wait or have exceeded
	// SlotTimeout; default 1024. Beyond that the answer is 429.
	Queue int
	// PerAllocation is the maximum number of operations on one allocation, one running
	// and the others waiting; default 16.
	PerAllocation int
	// Reads is the maximum number of concurrent reads; default 32. Reads do not wait for
	// operations.
	Reads int
	// Streams is the maximum number of streams of events; default 64.
	Streams int
	// Connections is the maximum number of connections; default 2048. An eighth is
	// reserved for root, and any other user may have half of the rest.
	Connections int

	// Body is the maximum size of one request's body in bytes; default 1 MiB. For /cni
	// it is cni.MaxRequest. AllBodies is the maximum size of the bodies of all requests
	// in progress; default 64 MiB.
	Body, AllBodies int64
	// AllAnswers is the maximum size of all unsent answers of reads, and of errors, that
	// have more than 64 KiB; default 32 MiB. A larger answer is sent alone.
	AllAnswers int64

	HeaderTimeout time.Duration // for the client to send a header; default 5 s
	BodyTimeout   time.Duration // for the client to send a body; default 10 s
	WriteTimeout  time.Duration // for the client to read an answer or a part of a stream; default 10 s
	IdleTimeout   time.Duration // between two requests; default 2 minutes
	// OperationTimeout bounds an operation on one allocation, SweepTimeout one on all
	// allocations (gc, repair), ReadTimeout a read, each including its time in the
	// queue; default 2 minutes, 10 minutes and 30 s.
	OperationTimeout, SweepTimeout, ReadTimeout time.Duration
	// Keepalive is the time between two keepalives on a stream of events; default 15 s.
	// For /cni it is cni.Keepalive.
	Keepalive time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Operations = cmp.Or(l.Operations, 32)
	l.SlotTimeout = cmp.Or(l.SlotTimeout, 5*time.Second)
	l.Queue = cmp.Or(l.Queue, 1024)
	l.PerAllocation = cmp.Or(l.PerAllocation, 16)
	l.Reads = cmp.Or(l.Reads, 32)
	l.Streams = cmp.Or(l.Streams, 64)
	l.Connections = cmp.Or(l.Connections, 2048)
	l.Body = cmp.Or(l.Body, 1<<20)
	l.AllBodies = cmp.Or(l.AllBodies, 64<<20)
	l.AllAnswers = cmp.Or(l.AllAnswers, 32<<20)
	l.HeaderTimeout = cmp.Or(l.HeaderTimeout, 5*time.Second)
	l.BodyTimeout = cmp.Or(l.BodyTimeout, 10*time.Second)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, 10*time.Second)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, 2*time.Minute)
	l.OperationTimeout = cmp.Or(l.OperationTimeout, 2*time.Minute)
	l.SweepTimeout = cmp.Or(l.SweepTimeout, 10*time.Minute)
	l.ReadTimeout = cmp.Or(l.ReadTimeout, 30*time.Second)
	l.Keepalive = cmp.Or(l.Keepalive, 15*time.Second)
	return l
}
