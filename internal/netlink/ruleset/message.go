package ruleset

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// begin begins a request about the table.
func (t *table) begin(b *sock.Requests, label string, kind, flags uint16) {
	b.BeginNetfilter(label, unix.NFNL_SUBSYS_NFTABLES, kind, flags, t.family)
}

// get makes n requests with one answer each, and calls each with every answer and the
// index of its request.
func (r *Ruleset) get(ctx context.Context, n int, build func(b *sock.Requests, i int), each func(i int, payload []byte, err error)) error {
	return sock.Build(func(b *sock.Requests) {
		for i := range n {
			build(b, i)
		}
	}, func(b *sock.Requests) error { return r.socket.Exchange(ctx, b, each) })
}

// dump requests all objects of a kind, and calls each with every answer. The error is
// EINTR if the ruleset changed in the meantime: then some objects may be missing.
func (r *Ruleset) dump(ctx context.Context, build func(*sock.Requests), each func(payload []byte)) error {
	return sock.Build(build, func(b *sock.Requests) error {
		return r.socket.Dump(ctx, b, func(payload []byte) error {
			each(payload)
			return nil
		})
	})
}

// The types of a comment in user data: of rules, tables and elements, and of sets.
const (
	dataComment    = 0
	dataSetComment = 7 // NFTNL_UDATA_SET_COMMENT
)

// putComment appends user data: a comment, and the records in more.
func putComment(b *sock.Requests, kind uint16, value string, more ...byte) {
	data := appendText(make([]byte, 0, 256), dataComment, value) // the kernel's maximum
	b.Attribute(kind, append(data, more...))
}

// appendText appends a record with a text to user data.
func appendText(data []byte, kind byte, text string) []byte {
	data = append(data, kind, byte(len(text)+1))
	return append(append(data, text...), 0)
}

// commentOf returns the comment in user data, if any.
func commentOf(data []byte) string { return textOf(data, dataComment) }

// textOf returns the text of a record in user data, if there is one of that type.
func textOf(data []byte, kind byte) string {
	value := recordOf(data, kind)
	return string(value[:max(len(value)-1, 0)])
}

// recordOf returns the value of a record in user data, if there is one of that type. A
// record consists of type, length and value.
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
