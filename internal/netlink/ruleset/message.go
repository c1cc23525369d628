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

// get makes n requests of one answer each, which is handed over with the index of its request.
func (r *Ruleset) get(ctx context.Context, n int, build func(b *sock.Requests, i int), each func(i int, payload []byte, err error)) error {
	return sock.Build(func(b *sock.Requests) {
		for i := range n {
			build(b, i)
		}
	}, func(b *sock.Requests) error { return r.socket.Exchange(ctx, b, each) })
}

// dump hands over every answer to a request for all objects of a kind. The error is EINTR if the ruleset changed
// meanwhile: then some may be missing.
func (r *Ruleset) dump(ctx context.Context, build func(*sock.Requests), each func(payload []byte)) error {
	return sock.Build(build, func(b *sock.Requests) error {
		return r.socket.Dump(ctx, b, func(payload []byte) error {
			each(payload)
			return nil
		})
	})
}

// dataComment is the type of a comment, for rules, tables and elements alike.
const dataComment = 0

// putComment appends user data: a comment, and maybe more records.
func putComment(b *sock.Requests, kind uint16, value string, more ...byte) {
	data := make([]byte, 0, 256) // the most that the kernel takes
	data = append(data, dataComment, byte(len(value)+1))
	data = append(append(data, value...), 0)
	b.Attribute(kind, append(data, more...))
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
