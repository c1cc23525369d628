package sock

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRequests: what the builder appends, the reader reads.
func TestRequests(t *testing.T) {
	var r Requests
	r.Begin("one", unix.RTM_GETLINK, unix.NLM_F_ACK)
	r.Append(1, 2, 3, 4)
	r.CString(1, "ab")
	r.String(2, "abcd")
	r.Uint8(3, 7)
	nest := r.Nest(4)
	r.Uint32(5, 1<<20)
	r.Uint32BE(6, 1<<20)
	r.Uint64BE(7, 1<<40)
	r.End(nest)
	r.Attribute(8, nil)
	r.BeginNetfilter("two", unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.AF_INET)
	r.finish()
	require.Equal(t, 2, r.Len())
	require.Equal(t, "two", r.Label(1))
	r.set(1, unix.NLM_F_ACK)
	r.number(0, 2, 41)

	type message struct {
		header
		seq     uint32
		payload []byte
	}
	var all []message
	require.NoError(t, messages(r.Data(), func(h header, seq uint32, payload []byte) { all = append(all, message{h, seq, payload}) }))
	require.Len(t, all, 2)
	require.Equal(t, header{unix.RTM_GETLINK, unix.NLM_F_REQUEST | unix.NLM_F_ACK}, all[0].header)
	require.EqualValues(t, 41, all[0].seq)
	require.Equal(t, header{unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, unix.NLM_F_REQUEST | unix.NLM_F_ACK}, all[1].header)
	require.EqualValues(t, 42, all[1].seq)
	require.Equal(t, []byte{unix.AF_INET, 0, 0, 0}, all[1].payload)
	require.Len(t, r.bytes(1, 2), unix.SizeofNlMsghdr+NetfilterHeader)

	values := map[uint16][]byte{}
	EachAttribute(After(4, all[0].payload), func(kind uint16, value []byte) {
		values[kind] = value
	})
	require.Equal(t, "ab", String(values[1]))
	require.Len(t, values[1], 3)
	require.Equal(t, "abcd", String(values[2]))
	require.Len(t, values[2], 4)
	require.Equal(t, []byte{7}, values[3])
	require.Contains(t, values, uint16(8))
	nested := map[uint16][]byte{}
	EachAttribute(values[4], func(kind uint16, value []byte) {
		nested[kind] = value
	})
	require.EqualValues(t, 1<<20, Uint32(nested[5]))
	require.EqualValues(t, 1<<20, Uint32BE(nested[6]))
	require.EqualValues(t, 1<<40, Uint64BE(nested[7]))
	require.Zero(t, Uint32(values[3])+Uint32BE(values[3])+uint32(Uint64BE(values[3])), "another length")
}

// What the kernel never sends is no panic.
func FuzzRead(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // an error without a number
	f.Add([]byte{5, 0, 1, 0, 'x'})
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = messages(data, func(h header, _ uint32, payload []byte) {
			if h.kind == unix.NLMSG_ERROR {
				errnoOf(payload)
			}
			EachNetfilterAttribute(payload, func(uint16, []byte) {})
		})
		n := 0
		EachAttribute(data, func(_ uint16, value []byte) {
			n += unix.SizeofNlAttr + len(value)
		})
		require.LessOrEqual(t, n, len(data))
	})
}

func BenchmarkAttributes(b *testing.B) {
	var r Requests
	for kind := range uint16(20) {
		r.Uint32(kind, 1)
	}
	data := r.Data()
	b.ReportAllocs()
	for b.Loop() {
		EachAttribute(data, func(kind uint16, value []byte) {
			if kind == 3 {
				binary.NativeEndian.Uint32(value)
			}
		})
	}
}
