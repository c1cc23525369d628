package rtnl

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

func openConn() (*sock.Socket, error) { return sock.Open(unix.NETLINK_ROUTE) }

// get makes one request and hands over its answer, which is valid during the call.
func get(e sock.Exchanger, build func(*sock.Requests), each func(answer []byte)) error {
	return sock.Build(build, func(r *sock.Requests) error {
		var failed error
		err := e.Exchange(context.Background(), r, func(_ int, payload []byte, err error) {
			if failed = err; err == nil && payload != nil {
				each(payload)
			}
		})
		if err == nil {
			err = failed
		}
		return err
	})
}

// do makes one request that is only acknowledged.
func do(e sock.Exchanger, build func(*sock.Requests)) error { return get(e, build, func([]byte) {}) }

// dump hands over every answer to a request for all objects of a kind, each valid during the call.
func dump(e sock.Exchanger, build func(*sock.Requests), each func(payload []byte) error) error {
	return sock.Build(build, func(r *sock.Requests) error { return e.Dump(context.Background(), r, each) })
}

// Batch is changes that go to the kernel in one system call. The zero value has none.
type Batch struct {
	requests sock.Requests
	excused  []unix.Errno // what a request may fail with; 0 is nothing
}

// begin begins a request that is acknowledged.
func (b *Batch) begin(label string, kind, flags uint16) *sock.Requests {
	return b.beginExcused(label, kind, flags, 0)
}

// beginExcused is begin of a request that may fail with an errno.
func (b *Batch) beginExcused(label string, kind, flags uint16, errno unix.Errno) *sock.Requests {
	b.excused = append(b.excused, errno)
	b.requests.Begin(label, kind, unix.NLM_F_ACK|flags)
	return &b.requests
}

// apply makes all changes, in order, also after one that fails. The error holds
// all failures.
func apply(e sock.Exchanger, b *Batch) error {
	var errs []error
	err := e.Exchange(context.Background(), &b.requests, func(i int, _ []byte, err error) {
		if err != nil && (b.excused[i] == 0 || !errors.Is(err, b.excused[i])) {
			errs = append(errs, err)
		}
	})
	return errors.Join(append(errs, err)...)
}

// putLink appends the header of a message about a link (struct ifinfomsg): 0 is the link that an attribute names. The
// flags are set, others stay.
func putLink(r *sock.Requests, index int, flags uint32) {
	var m [unix.SizeofIfInfomsg]byte
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	binary.NativeEndian.PutUint32(m[8:], flags)
	binary.NativeEndian.PutUint32(m[12:], flags)
	r.Append(m[:]...)
}

// putNamed is putLink of a link by its name.
func putNamed(r *sock.Requests, name string, flags uint32) {
	putLink(r, 0, flags)
	r.CString(unix.IFLA_IFNAME, name)
}
