package sock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Exchanger makes requests. A Socket makes them itself, a Pool with one of its sockets,
// and Here with a socket in the network namespace of the calling thread.
type Exchanger interface {
	// Exchange is Socket.Exchange.
	Exchange(ctx context.Context, r *Requests, each func(i int, payload []byte, err error)) error
	// Dump is Socket.Dump.
	Dump(ctx context.Context, r *Requests, each func(payload []byte) error) error
}

// Socket is a netlink socket of one protocol, in the network namespace in which it was
// opened. It is safe for concurrent use: requests run one after the other. An *Error
// means that the kernel refused the request that the error names; any other error means
// that the request could not be sent or its answer not read.
type Socket struct {
	protocol int
	turn     chan struct{} // holds a value while the socket is in use
	fd       int
	seq      uint32
	unread   bool // there may be answers that an earlier request did not read
	room     int  // the requests for whose errors the receive buffer was enlarged
}

var protocolNames = map[int]string{
	unix.NETLINK_ROUTE: "rtnetlink", unix.NETLINK_NETFILTER: "nfnetlink", unix.NETLINK_SOCK_DIAG: "sock_diag",
}

// Open opens a socket of a protocol (NETLINK_*) in the network namespace of the calling
// thread.
func Open(protocol int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", protocolNames[protocol], err)
	}
	// Error messages do not have to contain the request that they are about.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", protocolNames[protocol], err), unix.Close(fd))
	}
	if err := bind(fd); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", protocolNames[protocol], err), unix.Close(fd))
	}
	return &Socket{protocol: protocol, turn: make(chan struct{}, 1), fd: fd}, nil
}

// Close closes the socket. Later requests return os.ErrClosed.
func (s *Socket) Close() error {
	s.turn <- struct{}{}
	defer s.release()
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// The number of requests in one system call is limited, because their answers have to
// fit into the socket's receive buffer. An acknowledgement counts as 1, any other
// answer as answerCost.
const (
	mostPending = 64
	answerCost  = 4
)

// Exchange makes all requests in order; a request that fails does not stop the later
// ones. It calls each with every answer and the index of its request; err is set if the
// kernel refused the request. A request with NLM_F_ACK has an answer without payload; with
// NLM_F_ECHO as well, the requested message precedes it. Any other request has one answer.
// The payload is valid only during the call.
//
// The kernel answers in order, and reports errors without NLM_F_ACK, too. So Exchange asks for
// few acknowledgements: the next answer shows that a request was carried out.
//
// If the context ends, the remaining requests are not sent. Requests that were sent are
// processed, and their answers are passed to each.
func (s *Socket) Exchange(ctx context.Context, r *Requests, each func(i int, payload []byte, err error)) error {
	if r.Len() == 0 {
		return nil
	}
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	r.finish()
	for from := 0; from < r.Len(); {
		to, pending := from, 0
		for to < r.Len() && pending < mostPending {
			if pending++; r.flags(to)&(unix.NLM_F_ACK|unix.NLM_F_ECHO) != unix.NLM_F_ACK {
				pending += answerCost - 1
			}
			to++
		}
		if err := s.exchange(r, from, to, each); err != nil {
			return err
		}
		if from = to; from < r.Len() && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (s *Socket) exchange(r *Requests, from, to int, each func(i int, payload []byte, err error)) error {
	r.quieten(from, to-1)
	defer r.unquieten(from, to-1)
	if err := s.send(r, from, to); err != nil {
		return err
	}
	next := from // the first request that has not been answered
	return s.receive(context.Background(), r, from, to, func(i int, h header, payload []byte) (done bool) {
		for ; next < i; next++ {
			each(next, nil, nil)
		}
		switch {
		case h.kind == unix.NLMSG_ERROR:
			next++
			if errno := errnoOf(payload); errno != 0 {
				each(i, nil, &Error{r.Label(i), errno})
			} else {
				each(i, nil, nil)
			}
		default:
			if r.flags(i)&unix.NLM_F_ACK == 0 { // otherwise an acknowledgement follows
				next++
			}
			each(i, payload, nil)
		}
		return next == to
	})
}

// Dump makes one request for all objects of a kind, with NLM_F_DUMP. It calls each with
// every answer, which is valid only during that call. Dump returns the first error of
// each, after it has read all answers. The error is EINTR if the objects changed in the
// meantime, so that some may be missing; package retry repeats such a call. The context
// can end between two parts of the answer.
func (s *Socket) Dump(ctx context.Context, r *Requests, each func(payload []byte) error) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	r.finish()
	if err := s.send(r, 0, 1); err != nil {
		return err
	}
	var errno unix.Errno
	var failed error
	err := s.receive(ctx, r, 0, 1, func(_ int, h header, payload []byte) (done bool) {
		if h.flags&unix.NLM_F_DUMP_INTR != 0 {
			errno = unix.EINTR
		}
		if h.kind == unix.NLMSG_DONE || h.kind == unix.NLMSG_ERROR {
			if e := errnoOf(payload); e != 0 {
				errno = e
			}
			return true
		}
		if err := each(payload); failed == nil {
			failed = err
		}
		return false
	})
	switch {
	case err != nil:
		return err
	case errno != 0:
		return &Error{r.Label(0), errno}
	}
	return failed
}

// Transaction makes requests to nf_tables in one transaction: either all changes are
// made or none. If there are no requests, nothing is sent. The error can be of type
// Errors.
func (s *Socket) Transaction(ctx context.Context, build func(*Requests)) error {
	return s.NumberedTransaction(ctx, build, nil)
}

// NumberedTransaction is Transaction. It calls number, before any later transaction of the socket, with the
// number that the transaction gave to the state of nf_tables: see Generation. It does not call it if nothing
// has changed, nor if the number is not known: the first request is large or does not add or remove
// elements, sets or chains, or the kernel is older than 5.12 and no socket listens to changes. The kernel
// also returns what the first request has changed.
func (s *Socket) NumberedTransaction(ctx context.Context, build func(*Requests), number func(generation uint32)) error {
	return Build(func(r *Requests) {
		putBoundary(r, unix.NFNL_MSG_BATCH_BEGIN)
		build(r)
	}, func(r *Requests) error {
		last := r.Len() - 1
		if last == 0 {
			return ctx.Err()
		}
		putBoundary(r, unix.NFNL_MSG_BATCH_END)
		r.finish()
		if number != nil && r.hasSmallEcho(1) {
			r.set(1, unix.NLM_F_ECHO) // the answers to it are what it has changed and the number
		}
		r.set(last, unix.NLM_F_ACK)
		return s.transaction(ctx, r, last, number)
	})
}

// putBoundary appends a message that begins or ends a transaction.
func putBoundary(r *Requests, kind uint16) {
	r.Begin("transaction", kind, 0)
	r.Append(unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
}

// AwaitTransaction waits until the transaction that the kernel carries out, of whichever program, has changed
// nf_tables or has failed. It makes an empty transaction, which changes nothing, not even the generation. The
// kernel has ended it when it has taken the message, and answers only if it refuses it: older kernels, such
// as 6.1, acknowledge no message that begins or ends a transaction.
func (s *Socket) AwaitTransaction(ctx context.Context) error {
	return Build(func(r *Requests) {
		putBoundary(r, unix.NFNL_MSG_BATCH_BEGIN)
		putBoundary(r, unix.NFNL_MSG_BATCH_END)
	}, func(r *Requests) error {
		r.finish()
		if err := s.transaction(ctx, r, r.Len()-1, nil); !errors.Is(err, unix.EAGAIN) {
			return err
		}
		return nil
	})
}

func (s *Socket) transaction(ctx context.Context, r *Requests, last int, number func(uint32)) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	s.makeRoom(r.Len())
	if err := s.send(r, 0, r.Len()); err != nil {
		return err
	}
	var all Errors
	var generation uint32
	err := s.receive(context.Background(), r, 0, r.Len(), func(i int, h header, payload []byte) (done bool) {
		switch h.kind {
		case newGeneration:
			generation = GenerationOf(payload)
			return false
		case unix.NLMSG_ERROR:
		default:
			return false
		}
		if errno := errnoOf(payload); errno != 0 {
			all = append(all, &Error{r.Label(i), errno})
		}
		// The last request is answered after the transaction. If the kernel refuses the transaction
		// itself, it answers the first message alone.
		return i == last || i == 0
	})
	switch {
	case err != nil:
		return err
	case len(all) > 0:
		return all
	}
	if generation != 0 && number != nil {
		number(generation)
	}
	return nil
}

const newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN

// errorRoom is the part of the receive buffer that the kernel charges for an error, and usualErrors is how
// many fit into it as it is at first.
const (
	errorRoom   = 1 << 10
	usualErrors = 128
)

// makeRoom enlarges the receive buffer for a transaction: if a table is missing, all its requests are
// refused. If the process may not do that, a transaction with so many errors returns ENOBUFS instead.
func (s *Socket) makeRoom(requests int) {
	if requests > max(usualErrors, s.room) {
		s.room = requests
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, requests*errorRoom)
	}
}

// acquire waits until no other call uses the socket.
func (s *Socket) acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}: // a select with this case alone takes half as long
	default:
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.fd < 0 {
		s.release()
		return os.ErrClosed
	}
	return nil
}

func (s *Socket) release() { <-s.turn }

// send sends the requests with indexes in [from, to). It enlarges the socket's send
// buffer if they do not fit.
func (s *Socket) send(r *Requests, from, to int) error {
	if err := s.discard(); err != nil {
		return err
	}
	r.number(from, to, s.seq)
	data := r.bytes(from, to)
	_, err := unix.Write(s.fd, data)
	if err == unix.EMSGSIZE {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(data)); err != nil {
			return fmt.Errorf("make room for %d bytes to %s: %w", len(data), protocolNames[s.protocol], err)
		}
		_, err = unix.Write(s.fd, data)
	}
	if err != nil {
		return fmt.Errorf("send to %s: %w", protocolNames[s.protocol], err)
	}
	return nil
}

// discard reads the remaining answers to earlier requests, which also ends their dump
// in the kernel.
func (s *Socket) discard() error {
	if !s.unread {
		return nil
	}
	var in [1]byte // the kernel drops the rest of each message
	for {
		switch _, err := unix.Read(s.fd, in[:]); err {
		case nil, unix.EINTR, unix.ENOBUFS:
		case unix.EAGAIN:
			s.unread = false
			return nil
		default:
			return fmt.Errorf("drop answers of %s: %w", protocolNames[s.protocol], err)
		}
	}
}

// bufferSize is the maximum length of the kernel's answers.
const bufferSize = 32 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

type header struct{ kind, flags uint16 }

// receive calls each with the messages that answer the requests with indexes in [from,
// to), until each returns true.
func (s *Socket) receive(ctx context.Context, r *Requests, from, to int, each func(i int, h header, payload []byte) (done bool)) (err error) {
	first := s.seq
	s.seq += uint32(to - from)
	in := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(in)
	s.unread = true
	for done := false; !done; {
		n, err := unix.Read(s.fd, in[:])
		if err == unix.EINTR {
			continue
		}
		if err == nil {
			err = messages(in[:n], func(h header, seq uint32, payload []byte) {
				if i := seq - first; !done && i < uint32(to-from) { // otherwise it answers an earlier request
					done = each(from+int(i), h, payload)
				}
			})
		}
		if err != nil {
			return fmt.Errorf("read the answer of %s: %w", protocolNames[s.protocol], err)
		}
		if !done && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	s.unread = false
	return nil
}

// messages splits data into messages.
func messages(data []byte, each func(h header, seq uint32, payload []byte)) error {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr+4 || length > len(data) { // every payload has at least a number
			return unix.EBADMSG
		}
		h := header{kind: binary.NativeEndian.Uint16(data[4:]), flags: binary.NativeEndian.Uint16(data[6:])}
		each(h, binary.NativeEndian.Uint32(data[8:]), data[unix.SizeofNlMsghdr:length])
		data = data[min(len(data), Align(length)):]
	}
	return nil
}

// errnoOf reads the errno with which the payloads of NLMSG_ERROR and NLMSG_DONE begin.
func errnoOf(payload []byte) unix.Errno {
	return unix.Errno(-int32(binary.NativeEndian.Uint32(payload)))
}
