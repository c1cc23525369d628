package watch

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// DefaultBuffer is the default size of a receive buffer in bytes. It has room for the
// notifications about some ten thousand elements.
const DefaultBuffer = 8 << 20

// Watcher watches the network namespace of the process. It is safe for concurrent use.
type Watcher struct {
	// Damaged reports whether an allocation is known to be damaged. Only then, it is a change that
	// a route of another program was removed, or that the kernel has enabled IPv6 on a link. It is
	// set before Run; nil stands for never.
	Damaged func() bool

	buffer  int
	warn    func(error)
	changes *changes
}

// New returns a Watcher with receive buffers of a size in bytes, 0 for the default. It
// calls warn when it cannot listen, which it tries again.
func New(buffer int, warn func(error)) *Watcher {
	if buffer == 0 {
		buffer = DefaultBuffer
	}
	return &Watcher{buffer: buffer, warn: warn, changes: newChanges()}
}

// Changed returns a channel that has a value when there are changes to take.
func (w *Watcher) Changed() <-chan struct{} { return w.changes.wake }

// Take returns the changes since the last call, at most one of each kind.
func (w *Watcher) Take() []Change { return w.changes.take() }

// Run listens until the context ends. When it has begun to listen, and when it listens again after an
// error, there is a change of the kind Lost.
func (w *Watcher) Run(ctx context.Context) error {
	w.follow(ctx, w.rules, w.links)
	return ctx.Err()
}

// follow listens to sources until the context ends.
func (w *Watcher) follow(ctx context.Context, sources ...func() *source) {
	var running sync.WaitGroup
	awaited := new(atomic.Int64)
	awaited.Store(int64(len(sources)))
	for _, one := range sources {
		running.Go(func() { w.followOne(ctx, one, awaited) })
	}
	running.Wait()
}

// source is one kind of notifications.
type source struct {
	sock.ListenOptions
	// notified is called for every notification, and settled when those that have
	// arrived together have been read.
	notified func(*sock.Notification)
	settled  func()
}

const (
	// firstPause is the time in which notifications gather before they are read. While
	// none of them matters, as during many Setups, it grows up to lastPause.
	firstPause = 10 * time.Millisecond
	lastPause  = 80 * time.Millisecond
	// calm is the time without notifications after which the pause is short again.
	calm = time.Second

	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// followOne listens to a source until the context ends. awaited is the number of sources that have not tried to
// listen yet: the last one of them reports what was missed, so that this leads to one comparison, not to one
// for each.
func (w *Watcher) followOne(ctx context.Context, make func() *source, awaited *atomic.Int64) {
	retry, tried := firstRetry, false
	missed := func() {
		if tried || awaited.Add(-1) == 0 {
			w.changes.add(Change{Kind: Lost, Object: "changes before the start of the notifications"})
		}
		tried = true
	}
	for ctx.Err() == nil {
		began := time.Now()
		err := w.listen(ctx, make(), missed)
		if ctx.Err() != nil {
			return
		}
		if !tried { // the others begin without it
			missed()
		}
		w.warn(err)
		if time.Since(began) > lastRetry {
			retry = firstRetry
		}
		sleep(ctx, retry)
		retry = min(2*retry, lastRetry)
	}
}

// listen listens to a source until the context ends or the socket fails. It calls missed when it begins.
func (w *Watcher) listen(ctx context.Context, s *source, missed func()) error {
	l, err := sock.Listen(s.ListenOptions)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	missed()
	pause, read := firstPause, time.Now()
	for {
		before := w.changes.count()
		err := l.Wait(s.notified)
		if err == nil {
			if time.Since(read) > calm {
				pause = firstPause
			}
			sleep(ctx, pause)
			err = l.Drain(s.notified)
		}
		s.settled()
		read = time.Now()
		if pause = min(2*pause, lastPause); w.changes.count() != before {
			pause = firstPause
		}
		switch {
		case errors.Is(err, sock.ErrLost):
			w.changes.add(Change{Kind: Lost, Object: "notifications that came too fast"})
		case errors.Is(err, os.ErrClosed) && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// rules is the source of nf_tables.
func (w *Watcher) rules() *source {
	t := &transaction{changes: w.changes}
	return &source{
		ListenOptions: rulesOptions(w.buffer),
		notified:      t.notified, settled: func() {},
	}
}

func rulesOptions(buffer int) sock.ListenOptions {
	return sock.ListenOptions{Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES}, Buffer: buffer}
}

// links is the source of rtnetlink.
func (w *Watcher) links() *source {
	l := &links{changes: w.changes, suspects: map[int]suspicion{}, damaged: w.Damaged}
	if l.damaged == nil {
		l.damaged = func() bool { return false }
	}
	return &source{
		ListenOptions: linksOptions(w.buffer),
		notified:      l.notified, settled: l.settled,
	}
}

func linksOptions(buffer int) sock.ListenOptions {
	return sock.ListenOptions{
		Protocol: unix.NETLINK_ROUTE, Buffer: buffer, Filter: linkFilter(),
		Groups: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF},
	}
}
