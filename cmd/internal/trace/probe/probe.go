// Package probe sends one packet to a host port of an allocation, and reports which
// chains of nftables the packet and its answer pass, in the network namespaces of the
// host and of the allocation, and what these chains do to them.
//
// The packet is a TCP SYN or a UDP datagram. A temporary table marks it for tracing, by
// its initial sequence number or its random content. The table belongs to a socket of this
// process: the kernel removes it when the process ends, however it does so.
//
// No process receives anything: the datagram is dropped when it is about to reach the
// socket, and the connection is reset before it is established. A packet that is about to
// reach any destination other than the allocation is dropped.
package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/sandbox"
)

// Options describe a probe.
type Options struct {
	Protocol uint8 // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	// From is the source. Link is "" for an address of the host; otherwise the packet is
	// injected as if it were received on this link of the host.
	From netip.Addr
	Link string
	// Host is the host port, To the address of the allocation.
	Host netip.AddrPort
	To   netip.Addr
	// Inside is the network namespace of the allocation.
	Inside *sandbox.Sandbox
	// Wait bounds the wait for the answer; with NoAnswer, that for the arrival inside.
	Wait     time.Duration
	NoAnswer bool
}

// Result is what was seen of a probe.
type Result struct {
	Source netip.AddrPort
	// Host and Inside are the chains that the packets passed in the two network
	// namespaces, in order.
	Host, Inside []Pass
	// Tracked is the connection as the kernel tracks it on the host; nil if it does not.
	Tracked *conntrack.Connection
	// Lost: messages of the kernel about the packets are missing, because programs caused
	// more of them than could be read.
	Lost bool
	// Refused is the kernel's error for a packet that it did not send.
	Refused error
	Elapsed time.Duration // until the end of the probe
}

// ErrUnsupported: the kernel has no tables that end with their process (Linux 5.12), or no
// other part that a probe needs. Nothing was sent.
var ErrUnsupported = errors.New("the kernel does not support probes")

// resetWait bounds the wait until the reset has reached the allocation.
const resetWait = 200 * time.Millisecond

// Send sends a probe and waits for its end. It leaves nothing on the host.
func Send(ctx context.Context, o Options) (result *Result, err error) {
	id := newIdentity(o.Protocol)
	seen := newSighting(&o)
	host, err := observe(ctx, &observer{seen: seen, id: id}, hostChains(&o))
	if err != nil {
		return nil, err
	}
	inside := &observer{seen: seen, id: id, inside: true}
	if err := o.Inside.Do(func() (err error) {
		inside, err = observe(ctx, inside, insideChains(&o))
		return err
	}); err != nil {
		return nil, errors.Join(err, host.end(ctx))
	}
	s, err := newSender(&o, id)
	if err != nil {
		return nil, errors.Join(err, inside.end(ctx), host.end(ctx))
	}
	begin := time.Now()
	result = &Result{Source: s.source()}
	if result.Refused, err = s.send(flagSYN); err == nil && result.Refused == nil {
		await(ctx, seen.ended, o.Wait)
	}
	result.Elapsed = time.Since(begin)
	entries := conntrack.New()
	found, findErr := entries.Find(ctx, o.Protocol, result.Source, o.Host)
	result.Tracked = found
	if seen.connecting() {
		_, resetErr := s.send(flagRST)
		await(ctx, seen.reset, resetWait)
		err = errors.Join(err, resetErr)
	}
	clean := context.WithoutCancel(ctx)
	err = errors.Join(err, findErr, s.close(), inside.end(clean), host.end(clean), entries.Delete(clean, o.Protocol, result.Source, o.Host), entries.Close())
	result.Host, result.Inside, result.Lost = host.passes, inside.passes, host.lost || inside.lost
	return result, err
}

func await(ctx context.Context, done <-chan struct{}, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// identity tells the packets of a probe from all others.
type identity struct {
	protocol uint8
	sequence uint32 // of the SYN
	cookie   []byte // the content of the datagram
}

// cookieSize is what the kernel shows of a datagram's content.
const cookieSize = 12

func newIdentity(protocol uint8) identity {
	id := identity{protocol: protocol, cookie: make([]byte, cookieSize)}
	_, _ = rand.Read(id.cookie) // it never fails
	id.sequence = binary.NativeEndian.Uint32(id.cookie)
	return id
}

// field is a value in the transport header of the packets of a kind.
type field struct {
	kind   Kind
	offset uint32
	value  []byte
}

// fields returns what the packets of each kind have in common.
func (id identity) fields() []field {
	if id.protocol == unix.IPPROTO_UDP {
		return []field{{Request, 8, id.cookie}}
	}
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	const sequence, acknowledged = 4, 8
	return []field{
		{Request, sequence, number(id.sequence)},
		{Answer, acknowledged, number(id.sequence + 1)},
		{Reset, sequence, number(id.sequence + 1)},
	}
}

// kindOf returns the kind of a packet by its transport header.
func (id identity) kindOf(transport []byte) (kind Kind, found bool) {
	for _, f := range id.fields() {
		end := int(f.offset) + len(f.value)
		if len(transport) >= end && string(transport[f.offset:end]) == string(f.value) {
			return f.kind, true
		}
	}
	return 0, false
}

func unsupported(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnsupported, what, err)
}
