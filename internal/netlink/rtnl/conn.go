package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// conn is an rtnetlink socket for what every allocation needs. The kernel works
// while it is sent to, so that the answers are there as soon as sending returns,
// and nothing here waits but for another user of the socket. It is not known to
// the runtime's poller: to be woken for every answer takes longer than most
// requests do.
type conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
}

func openConn() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("open rtnetlink", err)
	}
	// Errors need not repeat the message that they are about.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return nil, errors.Join(os.NewSyscallError("open rtnetlink", err), unix.Close(fd))
	}
	return &conn{fd: fd}, nil
}

func (c *conn) close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil
	}
	fd := c.fd
	c.fd = -1
	return unix.Close(fd)
}

// exchanger is a conn, or several.
type exchanger interface {
	exchange(requests []*nl.NetlinkRequest, each func(i int, payload []byte, errno unix.Errno)) error
}

// pool is as many sockets as are used at the same time: an exchange that waits
// for the kernel's configuration lock holds up none that need not wait.
type pool struct {
	mu   sync.Mutex
	idle []*conn
}

// mostIdle are kept for the next burst.
const mostIdle = 8

func (p *pool) exchange(requests []*nl.NetlinkRequest, each func(i int, payload []byte, errno unix.Errno)) error {
	c, err := p.take()
	if err != nil {
		return err
	}
	defer p.give(c)
	return c.exchange(requests, each)
}

func (p *pool) take() (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		c := p.idle[last]
		p.idle = p.idle[:last]
		return c, nil
	}
	return openConn()
}

func (p *pool) give(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < mostIdle {
		p.idle = append(p.idle, c)
		return
	}
	_ = c.close()
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		_ = c.close()
	}
	p.idle = nil
}

// answerSize is the longest that the kernel makes.
const answerSize = 32 << 10

var answerBuffers = sync.Pool{New: func() any { return new([answerSize]byte) }}

// exchange sends requests in one system call, and hands over the answers with the
// index of their request: one for each, and before it what NLM_F_ECHO asks for. The
// kernel works through all of them, also after one that fails.
func (c *conn) exchange(requests []*nl.NetlinkRequest, each func(i int, payload []byte, errno unix.Errno)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return os.ErrClosed
	}
	var out []byte
	for i, r := range requests {
		r.Seq = c.seq + uint32(i)
		out = append(out, r.Serialize()...)
	}
	first := c.seq
	c.seq += uint32(len(requests))
	if _, err := unix.Write(c.fd, out); err != nil {
		return os.NewSyscallError("send to rtnetlink", err)
	}
	in := answerBuffers.Get().(*[answerSize]byte)
	defer answerBuffers.Put(in)
	for left := len(requests); left > 0; {
		n, err := unix.Read(c.fd, in[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read the answer of rtnetlink", err)
		}
		if err := eachMessage(in[:n], func(h header, payload []byte) {
			i := int(h.seq - first)
			if i < 0 || i >= len(requests) { // an answer to an earlier request
				return
			}
			if h.kind == unix.NLMSG_ERROR {
				left--
				each(i, nil, unix.Errno(-int32(binary.NativeEndian.Uint32(payload))))
				return
			}
			if requests[i].Flags&unix.NLM_F_ACK == 0 { // else there is more to come
				left--
			}
			each(i, payload, 0)
		}); err != nil {
			return err
		}
	}
	return nil
}

type header struct {
	kind, flags uint16
	seq         uint32
}

// eachMessage takes apart what was read.
func eachMessage(data []byte, each func(h header, payload []byte)) error {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr+4 || length > len(data) {
			return os.NewSyscallError("read the answer of rtnetlink", unix.EBADMSG)
		}
		h := header{
			kind: binary.NativeEndian.Uint16(data[4:]), flags: binary.NativeEndian.Uint16(data[6:]), seq: binary.NativeEndian.Uint32(data[8:]),
		}
		each(h, data[unix.SizeofNlMsghdr:length])
		data = data[min(len(data), nlAlign(length)):]
	}
	return nil
}

// eachAttribute takes the attributes of a message apart, up to one that is broken.
func eachAttribute(data []byte, each func(kind uint16, value []byte)) {
	for len(data) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofNlAttr || length > len(data) {
			return
		}
		const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		each(binary.NativeEndian.Uint16(data[2:])&^flags, data[unix.SizeofNlAttr:length])
		data = data[min(len(data), nlAlign(length)):]
	}
}

func nlAlign(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// get makes one request and hands over its answer, which is valid during the call.
func get(e exchanger, r *nl.NetlinkRequest, each func(answer []byte)) error {
	var failed unix.Errno
	err := e.exchange([]*nl.NetlinkRequest{r}, func(_ int, payload []byte, errno unix.Errno) {
		if failed = errno; errno == 0 {
			each(payload)
		}
	})
	if err == nil && failed != 0 {
		err = failed
	}
	return err
}

// dump hands over every answer to a request for all of something, each valid during
// the call. The error is
// EINTR where something changed meanwhile: then some may be missing.
func (c *conn) dump(r *nl.NetlinkRequest, each func(payload []byte) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return os.ErrClosed
	}
	r.Seq = c.seq
	c.seq++
	if _, err := unix.Write(c.fd, r.Serialize()); err != nil {
		return os.NewSyscallError("send to rtnetlink", err)
	}
	in := answerBuffers.Get().(*[answerSize]byte)
	defer answerBuffers.Put(in)
	var found error
	for done := false; !done; {
		n, err := unix.Read(c.fd, in[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read the answer of rtnetlink", err)
		}
		err = eachMessage(in[:n], func(h header, payload []byte) {
			if h.seq != r.Seq {
				return
			}
			if h.flags&unix.NLM_F_DUMP_INTR != 0 {
				found = unix.EINTR
			}
			switch h.kind {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				if errno := int32(binary.NativeEndian.Uint32(payload)); errno != 0 {
					found = unix.Errno(-errno)
				}
			default:
				if err := each(payload); err != nil && found == nil {
					found = err
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return found
}

// do makes one request that is only acknowledged.
func do(e exchanger, r *nl.NetlinkRequest) error { return get(e, r, func([]byte) {}) }

// Batch is changes that go to the kernel in one system call.
type Batch struct {
	requests []*nl.NetlinkRequest
	labels   []string
	excused  []unix.Errno // what the request may fail with; 0 is nothing
}

func (b *Batch) add(label string, r *nl.NetlinkRequest) { b.addExcused(label, r, 0) }

func (b *Batch) addExcused(label string, r *nl.NetlinkRequest, errno unix.Errno) {
	b.requests, b.labels, b.excused = append(b.requests, r), append(b.labels, label), append(b.excused, errno)
}

// apply makes all changes, in order, also after one that fails. The error holds
// all failures.
func apply(e exchanger, b *Batch) error {
	const atOnce = 64 // answers to more may not fit into what the socket can hold
	var errs []error
	for first := 0; first < len(b.requests); first += atOnce {
		some := b.requests[first:min(first+atOnce, len(b.requests))]
		err := e.exchange(some, func(i int, _ []byte, errno unix.Errno) {
			if errno != 0 && errno != b.excused[first+i] {
				errs = append(errs, fmt.Errorf("%s: %w", b.labels[first+i], errno))
			}
		})
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

// request starts one that is acknowledged.
func request(kind, flags int) *nl.NetlinkRequest {
	return nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
}

// inquiry starts one that is answered.
func inquiry(kind int) *nl.NetlinkRequest { return nl.NewNetlinkRequest(kind, 0) }
