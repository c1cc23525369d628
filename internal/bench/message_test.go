package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMessage(t *testing.T) {
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE, []byte{1, 2, 3, 4})
	m.text(unix.IFLA_IFNAME, "abcd")
	m.nest(unix.IFLA_LINKINFO, func() {
		m.attr(infoKind, 'v', 'e', 't', 'h')
		m.number(infoData, 7)
	})
	b := m.finish(9)
	require.Zero(t, len(b)%4)

	var seen int
	done := answers(b, func(sequence uint32, kind int, payload []byte) bool {
		seen++
		require.EqualValues(t, 9, sequence)
		require.Equal(t, unix.RTM_NEWLINK, kind)
		found := attributes(payload[4:])
		require.Equal(t, "abcd\x00", string(found[unix.IFLA_IFNAME]))
		inner := attributes(found[unix.IFLA_LINKINFO])
		require.Equal(t, "veth", string(inner[infoKind]))
		require.Len(t, inner[infoData], 4)
		return true
	})
	require.True(t, done)
	require.Equal(t, 1, seen)
}

func TestAnswersThatEndEarly(t *testing.T) {
	whole := newMessage(unix.RTM_NEWLINK, 0, make([]byte, 16)).finish(1)
	for n := range len(whole) {
		require.False(t, answers(whole[:n], func(uint32, int, []byte) bool {
			t.Fatalf("took %d of %d bytes for a message", n, len(whole))
			return true
		}))
	}
	require.Empty(t, attributes([]byte{200, 0, 1, 0, 1}))
}
