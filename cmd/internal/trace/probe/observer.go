package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// observer watches the packets of a probe in one network namespace.
type observer struct {
	seen   *sighting
	id     identity
	inside bool

	family   byte
	table    string
	socket   *sock.Socket // owns the table
	listener *sock.Listener
	passes   []Pass           // closed when finished is
	open     map[uint32]*Pass // by the number of the packet
	hooks    map[Kind]string  // at which a packet is: that of a kind can have caused another one
	lost     bool             // messages are missing
	finished chan error
}

// Groups of notifications of nf_tables.
const (
	groupTables = 7 // NFNLGRP_NFTABLES
	groupTrace  = 9 // NFNLGRP_NFTRACE
)

// traceBuffer holds some thousand messages.
var traceBuffer = 4 << 20

const (
	// maxPasses bounds what is kept. The process in the network namespace of the allocation
	// can answer again and again.
	maxPasses = 1 << 10
	// drainTime bounds the wait for the message about the deletion of the table. It is lost,
	// or comes late, if other programs cause more messages than can be read.
	drainTime = time.Second
)

// observe makes the temporary table in the network namespace of the calling thread, and
// begins to watch.
func observe(ctx context.Context, o *observer, chains []chain) (*observer, error) {
	o.family = o.seen.family
	o.table = fmt.Sprintf("allocnet_trace_%d_%x", os.Getpid(), binary.NativeEndian.Uint32(o.id.cookie[4:]))
	o.open, o.hooks, o.finished = map[uint32]*Pass{}, map[Kind]string{}, make(chan error, 1)
	var err error
	listen := sock.ListenOptions{Protocol: unix.NETLINK_NETFILTER, Groups: []int{groupTables, groupTrace}, Buffer: traceBuffer, Own: true}
	if o.listener, err = sock.Listen(listen); err != nil {
		return nil, unsupported("listen to nftables", err)
	}
	if o.socket, err = sock.Open(unix.NETLINK_NETFILTER); err != nil {
		return nil, errors.Join(err, o.listener.Close())
	}
	if err := o.socket.Transaction(ctx, func(r *sock.Requests) { o.put(r, chains) }); err != nil {
		return nil, errors.Join(unsupported("make a temporary table", err), o.socket.Close(), o.listener.Close())
	}
	go o.watch()
	return o, nil
}

// watch reads messages until the table is deleted.
func (o *observer) watch() {
	deleted := false
	for !deleted {
		err := o.listener.Wait(func(n *sock.Notification) {
			switch n.Kind {
			case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE:
				o.trace(n.Payload)
			case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE:
				sock.EachNetfilterAttribute(n.Payload, func(kind uint16, value []byte) {
					deleted = deleted || kind == unix.NFTA_TABLE_NAME && sock.String(value) == o.table
				})
			}
		})
		o.lost = o.lost || errors.Is(err, sock.ErrLost)
		if err != nil && !errors.Is(err, sock.ErrLost) {
			o.finished <- err
			return
		}
	}
	o.finished <- nil
}

// end deletes the table, and waits until all messages before that are read, or are lost.
func (o *observer) end(ctx context.Context) error {
	err := o.socket.Transaction(ctx, func(r *sock.Requests) {
		r.BeginNetfilter("table "+o.table, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_DELTABLE, 0, o.family)
		r.CString(unix.NFTA_TABLE_NAME, o.table)
	})
	if err != nil { // then the kernel deletes it with the socket
		err = errors.Join(fmt.Errorf("delete temporary table: %w", err), o.listener.Close())
	}
	late := time.AfterFunc(drainTime, func() { _ = o.listener.Close() })
	defer late.Stop()
	waitErr := <-o.finished
	if errors.Is(waitErr, os.ErrClosed) {
		waitErr, o.lost = nil, true
	}
	return errors.Join(err, waitErr, o.socket.Close(), o.listener.Close())
}

// sighting is what the observers of both network namespaces have seen together.
type sighting struct {
	family byte
	o      *Options
	ended  chan struct{} // closed at the end of the probe
	reset  chan struct{} // closed when the reset has arrived

	mu               sync.Mutex
	isEnded, isReset bool
	arrived          bool // in the network namespace of the allocation
}

func newSighting(o *Options) *sighting {
	s := &sighting{family: unix.NFPROTO_IPV4, o: o, ended: make(chan struct{}), reset: make(chan struct{})}
	if o.To.Is6() {
		s.family = unix.NFPROTO_IPV6
	}
	return s
}

// connecting reports whether the allocation has a half-open connection.
func (s *sighting) connecting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.o.Protocol == unix.IPPROTO_TCP && s.arrived && !s.isReset
}

// note notes a chain that a packet has passed.
func (s *sighting) note(inside bool, p *Pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	atEnd := p.Own && strings.HasSuffix(p.Chain, end)
	arrived := inside && atEnd && p.Kind == Request
	s.arrived = s.arrived || arrived
	ended := p.Kind != Reset && (p.Drops() ||
		arrived && (s.o.NoAnswer || s.o.Protocol == unix.IPPROTO_UDP) ||
		!inside && atEnd && p.Kind == Answer)
	if ended && !s.isEnded {
		s.isEnded = true
		close(s.ended)
	}
	if inside && atEnd && p.Kind == Reset && !s.isReset {
		s.isReset = true
		close(s.reset)
	}
}
