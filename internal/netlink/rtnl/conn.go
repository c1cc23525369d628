package rtnl

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

func openConn() (*sock.Socket, error) { return sock.Open(unix.NETLINK_ROUTE) }

// get makes one request and passes the answer to each. The answer is valid only during
// that call.
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

// do makes one request that the kernel answers with an acknowledgement only.
func do(e sock.Exchanger, build func(*sock.Requests)) error { return get(e, build, func([]byte) {}) }

// dump requests all objects of a kind and passes every answer to each. A payload is
// valid only during that call.
func dump(e sock.Exchanger, build func(*sock.Requests), each func(payload []byte) error) error {
	return sock.Build(build, func(r *sock.Requests) error { return e.Dump(context.Background(), r, each) })
}

// Batch is a list of changes that Apply sends to the kernel together, as a rule in one
// system call. The zero value is an empty batch.
type Batch struct {
	requests sock.Requests
	excuses  []excuse // one for each request
}

// excuse is an errno that is no error; 0 for none. If the kernel refuses the request with it, met is
// set unless it is nil.
type excuse struct {
	errno unix.Errno
	met   *bool
}

// begin begins a request that the kernel acknowledges.
func (b *Batch) begin(label string, kind, flags uint16) *sock.Requests {
	return b.beginExcused(label, kind, flags, 0)
}

// beginExcused is like begin, but apply ignores a failure of the request with errno.
func (b *Batch) beginExcused(label string, kind, flags uint16, errno unix.Errno) *sock.Requests {
	return b.beginNoting(label, kind, flags, excuse{errno: errno})
}

func (b *Batch) beginNoting(label string, kind, flags uint16, e excuse) *sock.Requests {
	b.excuses = append(b.excuses, e)
	b.requests.Begin(label, kind, unix.NLM_F_ACK|flags)
	return &b.requests
}

// apply makes all changes in order. A change that fails does not stop the later ones.
// The error joins all failures.
func apply(e sock.Exchanger, b *Batch) error {
	var errs []error
	err := e.Exchange(context.Background(), &b.requests, func(i int, _ []byte, err error) {
		switch excused := b.excuses[i]; {
		case err == nil:
		case excused.errno == 0 || !errors.Is(err, excused.errno):
			errs = append(errs, err)
		case excused.met != nil:
			*excused.met = true
		}
	})
	return errors.Join(append(errs, err)...)
}

// putLink appends the header of a message about a link (struct ifinfomsg). If index is
// 0, an attribute identifies the link. The given flags are set; all other flags keep
// their values.
func putLink(r *sock.Requests, index int, flags uint32) {
	var m [unix.SizeofIfInfomsg]byte
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	binary.NativeEndian.PutUint32(m[8:], flags)
	binary.NativeEndian.PutUint32(m[12:], flags)
	r.Append(m[:]...)
}

// putNamed is like putLink, but identifies the link by its name.
func putNamed(r *sock.Requests, name string, flags uint32) {
	putLink(r, 0, flags)
	r.CString(unix.IFLA_IFNAME, name)
}
