package bench

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// message is one netlink message under construction.
type message struct{ buf []byte }

// newMessage starts a message: the netlink header, then the fixed header of its
// family.
func newMessage(kind, flags int, header []byte) *message {
	m := &message{buf: make([]byte, unix.NLMSG_HDRLEN, 256)}
	binary.NativeEndian.PutUint16(m.buf[4:], uint16(kind))
	binary.NativeEndian.PutUint16(m.buf[6:], uint16(flags|unix.NLM_F_REQUEST))
	m.buf = append(m.buf, header...)
	m.pad()
	return m
}

func (m *message) pad() {
	for len(m.buf)%unix.NLMSG_ALIGNTO != 0 {
		m.buf = append(m.buf, 0)
	}
}

// attr adds an attribute.
func (m *message) attr(kind int, value ...byte) {
	m.buf = binary.NativeEndian.AppendUint16(m.buf, uint16(unix.NLA_HDRLEN+len(value)))
	m.buf = binary.NativeEndian.AppendUint16(m.buf, uint16(kind))
	m.buf = append(m.buf, value...)
	m.pad()
}

func (m *message) text(kind int, value string) { m.attr(kind, append([]byte(value), 0)...) }

func (m *message) number(kind int, value uint32) {
	m.attr(kind, binary.NativeEndian.AppendUint32(nil, value)...)
}

// nest adds an attribute that contains the attributes that fill adds.
func (m *message) nest(kind int, fill func()) {
	start := len(m.buf)
	m.attr(kind | unix.NLA_F_NESTED)
	fill()
	binary.NativeEndian.PutUint16(m.buf[start:], uint16(len(m.buf)-start))
}

// finish returns the message with its length and sequence number set.
func (m *message) finish(sequence uint32) []byte {
	binary.NativeEndian.PutUint32(m.buf, uint32(len(m.buf)))
	binary.NativeEndian.PutUint32(m.buf[8:], sequence)
	return m.buf
}

// flag sets a flag of the message.
func (m *message) flag(flag int) {
	binary.NativeEndian.PutUint16(m.buf[6:], binary.NativeEndian.Uint16(m.buf[6:])|uint16(flag))
}

// attributes parses attributes into a map by kind.
func attributes(b []byte) map[int][]byte {
	found := map[int][]byte{}
	for len(b) >= unix.NLA_HDRLEN {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.NLA_HDRLEN || size > len(b) {
			break
		}
		found[int(binary.NativeEndian.Uint16(b[2:]))&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = b[unix.NLA_HDRLEN:size]
		b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return found
}
