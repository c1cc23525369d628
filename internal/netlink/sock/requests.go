package sock

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// Requests is a sequence of netlink messages in one buffer. The zero value is ready for
// use. It is not safe for concurrent use.
type Requests struct {
	data []byte
	list []request
}

// request contains the offset of a message in the buffer, its name in errors, and whether it has lost
// NLM_F_ACK: see quieten.
type request struct {
	start int
	label string
	quiet bool
}

var spare = sync.Pool{New: func() any { return new(Requests) }}

// Build calls build with empty Requests, and then use with the same. Neither function
// may keep them: Build reuses the memory.
func Build(build func(*Requests), use func(*Requests) error) error {
	r := spare.Get().(*Requests)
	defer spare.Put(r)
	r.Reset()
	build(r)
	return use(r)
}

// Reset removes all requests.
func (r *Requests) Reset() { r.data, r.list = r.data[:0], r.list[:0] }

// Len returns the number of requests.
func (r *Requests) Len() int { return len(r.list) }

// Size returns the length of all requests in bytes.
func (r *Requests) Size() int { return len(r.data) }

// Data returns everything that was appended. It is for attributes that are built before
// the request to which they belong.
func (r *Requests) Data() []byte { return r.data }

// Label returns the name of a request in errors.
func (r *Requests) Label(i int) string { return r.list[i].label }

// Begin begins a request. Errors name the request by the label. Everything that is
// appended before the next Begin belongs to the request.
func (r *Requests) Begin(label string, kind, flags uint16) {
	r.finish()
	r.list = append(r.list, request{start: len(r.data), label: label})
	var header [unix.SizeofNlMsghdr]byte // without length and sequence number
	binary.NativeEndian.PutUint16(header[4:], kind)
	binary.NativeEndian.PutUint16(header[6:], unix.NLM_F_REQUEST|flags)
	r.data = append(r.data, header[:]...)
}

// BeginNetfilter begins a request to a subsystem of nfnetlink (NFNL_SUBSYS_*), for an
// address family.
func (r *Requests) BeginNetfilter(label string, subsystem, kind, flags uint16, family byte) {
	r.Begin(label, subsystem<<8|kind, flags)
	r.Append(family, unix.NFNETLINK_V0, 0, 0)
}

// Append appends bytes that are no attribute, such as the header of the message's
// family.
func (r *Requests) Append(header ...byte) { r.data = append(r.data, header...) }

// Attribute appends an attribute.
func (r *Requests) Attribute(kind uint16, value []byte) {
	r.begin(kind, len(value))
	r.data = append(r.data, value...)
	r.pad()
}

// String appends a string that does not end in NUL.
func (r *Requests) String(kind uint16, value string) {
	r.begin(kind, len(value))
	r.data = append(r.data, value...)
	r.pad()
}

// CString appends a string that ends in NUL.
func (r *Requests) CString(kind uint16, value string) {
	r.begin(kind, len(value)+1)
	r.data = append(append(r.data, value...), 0)
	r.pad()
}

// Uint8 appends a byte.
func (r *Requests) Uint8(kind uint16, value uint8) {
	r.begin(kind, 1)
	r.data = append(r.data, value)
	r.pad()
}

// Uint32 appends a number in the host's byte order.
func (r *Requests) Uint32(kind uint16, value uint32) {
	r.begin(kind, 4)
	r.data = binary.NativeEndian.AppendUint32(r.data, value)
}

// Uint32BE appends a number in network byte order, which nfnetlink uses.
func (r *Requests) Uint32BE(kind uint16, value uint32) {
	r.begin(kind, 4)
	r.data = binary.BigEndian.AppendUint32(r.data, value)
}

// Uint64BE appends a number in network byte order.
func (r *Requests) Uint64BE(kind uint16, value uint64) {
	r.begin(kind, 8)
	r.data = binary.BigEndian.AppendUint64(r.data, value)
}

// Nest begins an attribute that contains everything appended until End. End gets the
// value that Nest returns.
func (r *Requests) Nest(kind uint16) (start int) {
	start = len(r.data)
	r.begin(unix.NLA_F_NESTED|kind, 0)
	return start
}

// End ends an attribute that Nest began.
func (r *Requests) End(start int) {
	binary.NativeEndian.PutUint16(r.data[start:], uint16(len(r.data)-start))
}

// begin appends the header of an attribute with a value of n bytes.
func (r *Requests) begin(kind uint16, n int) {
	r.data = binary.NativeEndian.AppendUint16(r.data, uint16(unix.SizeofNlAttr+n))
	r.data = binary.NativeEndian.AppendUint16(r.data, kind)
}

func (r *Requests) pad() {
	for len(r.data)%unix.NLA_ALIGNTO != 0 {
		r.data = append(r.data, 0)
	}
}

// finish sets the length of the last message.
func (r *Requests) finish() {
	if last := len(r.list) - 1; last >= 0 {
		start := r.list[last].start
		binary.NativeEndian.PutUint32(r.data[start:], uint32(len(r.data)-start))
	}
}

// number sets the sequence numbers of the requests with indexes in [from, to), counting
// from first.
func (r *Requests) number(from, to int, first uint32) {
	for i := from; i < to; i++ {
		binary.NativeEndian.PutUint32(r.data[r.list[i].start+8:], first+uint32(i-from))
	}
}

// bytes returns the messages of the requests with indexes in [from, to).
func (r *Requests) bytes(from, to int) []byte {
	end := len(r.data)
	if to < len(r.list) {
		end = r.list[to].start
	}
	return r.data[r.list[from].start:end]
}

func (r *Requests) flags(i int) uint16 { return binary.NativeEndian.Uint16(r.data[r.list[i].start+6:]) }

// mostEchoed is the maximum length of a request that is echoed. The answer needs several times that
// in the receive buffer.
const mostEchoed = 4 << 10

// hasSmallEcho reports whether the echo of a request to nf_tables is not much larger than the request. The
// removal of a chain's rules, for example, is a short request that echoes all of them.
func (r *Requests) hasSmallEcho(i int) bool {
	small := r.list[i+1].start-r.list[i].start <= mostEchoed
	switch r.kind(i) & 0xff {
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_NEWSET, unix.NFT_MSG_NEWCHAIN:
		return small
	}
	return false
}

// kind returns the type of a request's message.
func (r *Requests) kind(i int) uint16 { return binary.NativeEndian.Uint16(r.data[r.list[i].start+4:]) }

// set adds flags to a request.
func (r *Requests) set(i int, flags uint16) {
	binary.NativeEndian.PutUint16(r.data[r.list[i].start+6:], r.flags(i)|flags)
}

// quieten removes NLM_F_ACK from the requests with indexes in [from, to) that have no other answer. unquieten
// adds it again.
func (r *Requests) quieten(from, to int) {
	for i := from; i < to; i++ {
		if flags := r.flags(i); flags&(unix.NLM_F_ACK|unix.NLM_F_ECHO) == unix.NLM_F_ACK {
			binary.NativeEndian.PutUint16(r.data[r.list[i].start+6:], flags&^unix.NLM_F_ACK)
			r.list[i].quiet = true
		}
	}
}

func (r *Requests) unquieten(from, to int) {
	for i := from; i < to; i++ {
		if r.list[i].quiet {
			r.set(i, unix.NLM_F_ACK)
			r.list[i].quiet = false
		}
	}
}
