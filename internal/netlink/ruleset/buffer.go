package ruleset

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// buffer is a sequence of netlink messages that grows in place, so that one
// buffer serves all requests of a socket.
type buffer struct {
	data   []byte
	labels []string // what each message is about
	first  uint32   // sequence number of the first message
	start  int      // of the message that is being built
	family byte     // of the messages that follow
}

// reset empties the buffer; its messages get the numbers from first on.
func (b *buffer) reset(first uint32) {
	b.data, b.labels, b.first, b.start = b.data[:0], b.labels[:0], first, 0
}

// message ends the one before and begins another, of nf_tables.
func (b *buffer) message(label string, kind, flags uint16) {
	b.begin(label, unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, b.family, 0)
}

// boundary is the first or the last message of a transaction.
func (b *buffer) boundary(kind uint16) {
	b.begin("transaction", kind, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
}

func (b *buffer) begin(label string, kind, flags uint16, family byte, resource uint16) {
	b.finish()
	b.start = len(b.data)
	d := binary.NativeEndian.AppendUint32(b.data, 0)
	d = binary.NativeEndian.AppendUint16(d, kind)
	d = binary.NativeEndian.AppendUint16(d, unix.NLM_F_REQUEST|flags)
	d = binary.NativeEndian.AppendUint32(d, b.first+uint32(len(b.labels)))
	d = append(d, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
	b.data = binary.BigEndian.AppendUint16(d, resource)
	b.labels = append(b.labels, label)
}

// finish fills in the length of the last message.
func (b *buffer) finish() {
	if len(b.labels) > 0 {
		binary.NativeEndian.PutUint32(b.data[b.start:], uint32(len(b.data)-b.start))
	}
}

// acknowledge asks for an answer to the last message.
func (b *buffer) acknowledge() {
	flags := b.data[b.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
}

// nest begins an attribute that holds others, and returns what end needs.
func (b *buffer) nest(kind uint16) (start int) {
	start = len(b.data)
	b.attribute(unix.NLA_F_NESTED|kind, 0)
	return start
}

// end fills in the length of a nest.
func (b *buffer) end(start int) {
	binary.NativeEndian.PutUint16(b.data[start:], uint16(len(b.data)-start))
}

// attribute begins one whose n bytes follow.
func (b *buffer) attribute(kind uint16, n int) {
	b.data = binary.NativeEndian.AppendUint16(b.data, uint16(unix.SizeofNlAttr+n))
	b.data = binary.NativeEndian.AppendUint16(b.data, kind)
}

func (b *buffer) bytes(kind uint16, value []byte) {
	b.attribute(kind, len(value))
	b.data = append(b.data, value...)
	b.pad()
}

// text is a string with the NUL that the kernel wants.
func (b *buffer) text(kind uint16, value string) {
	b.attribute(kind, len(value)+1)
	b.data = append(append(b.data, value...), 0)
	b.pad()
}

func (b *buffer) number(kind uint16, value uint32) {
	b.attribute(kind, 4)
	b.data = binary.BigEndian.AppendUint32(b.data, value)
}

// dataComment is the type of a comment, for rules, tables and elements alike.
const dataComment = 0

// comment is user data: a comment, and maybe more records.
func (b *buffer) comment(kind uint16, value string, more ...byte) {
	b.attribute(kind, len(value)+3+len(more))
	b.data = append(b.data, dataComment, byte(len(value)+1))
	b.data = append(append(b.data, value...), 0)
	b.data = append(b.data, more...)
	b.pad()
}

func (b *buffer) pad() {
	for len(b.data)%unix.NLA_ALIGNTO != 0 {
		b.data = append(b.data, 0)
	}
}

// attributes calls a function for each attribute.
func attributes(data []byte, each func(kind uint16, value []byte)) {
	for len(data) >= unix.SizeofNlAttr {
		n := int(binary.NativeEndian.Uint16(data))
		if n < unix.SizeofNlAttr || n > len(data) {
			return
		}
		kind := binary.NativeEndian.Uint16(data[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		each(kind, data[unix.SizeofNlAttr:n])
		data = data[min(len(data), (n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
}

// commentOf finds the comment in user data.
func commentOf(data []byte) string {
	value := recordOf(data, dataComment)
	return string(value[:max(len(value)-1, 0)])
}

// recordOf finds a record in user data: these are of type, length and value.
func recordOf(data []byte, kind byte) []byte {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == kind {
			return value
		}
		data = data[2+len(value):]
	}
	return nil
}
