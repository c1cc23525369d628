package api

import (
	"cmp"
	"time"
)

// Limits bound what clients can ask for. Zero values stand for the defaults given
// here.
type Limits struct {
	// Operations is how many are worked on at once; default 32. One that has
	// taken longer than Patience does not count any more: it waits for a plugin,
	// and must not keep others from running. Default 5 s.
	Operations int
	Patience   time.Duration
	// Queue is how many operations more there may be, that wait for their turn or
	// have outrun the Patience; default 1024. Beyond that the answer is 429.
	Queue int
	// PerAllocation is how many operations on one allocation there may be, of which
	// one runs; default 16.
	PerAllocation int
	// Reads is how many run at once; default 32. They do not wait for operations.
	Reads int
	// Streams is how many streams of events there may be; default 64.
	Streams int
	// Connections is how many there may be; default 2048. An eighth is kept for root,
	// and a user who is not root may have half of what is left.
	Connections int

	// Body bounds one request's body, in bytes; default 1 MiB, at /cni
	// cniwire.MaxRequest. AllBodies bounds those of all requests that are in
	// progress; default 64 MiB.
	Body, AllBodies int64
	// AllAnswers bounds those of reads and the errors of more than 64 KiB that are on
	// their way to clients, in bytes; default 32 MiB. A larger one goes alone.
	AllAnswers int64

	HeaderTimeout time.Duration // to send a header; default 5 s
	BodyTimeout   time.Duration // to send a body; default 10 s
	WriteTimeout  time.Duration // to take in an answer, or a part of a stream; default 10 s
	IdleTimeout   time.Duration // between two requests; default 2 minutes
	// OperationTimeout bounds an operation on one allocation, SweepTimeout one on
	// all of them (gc, repair), ReadTimeout a read, with the time in the queue;
	// default 2 minutes, 10 minutes and 30 s.
	OperationTimeout, SweepTimeout, ReadTimeout time.Duration
	// Heartbeat is the time between two signs of life on a stream of events;
	// default 15 s. That of /cni is cniwire.Heartbeat.
	Heartbeat time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Operations = cmp.Or(l.Operations, 32)
	l.Patience = cmp.Or(l.Patience, 5*time.Second)
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
	l.Heartbeat = cmp.Or(l.Heartbeat, 15*time.Second)
	return l
}
