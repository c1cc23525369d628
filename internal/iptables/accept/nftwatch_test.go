package accept

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message is a rule that counts and jumps, as the kernel sends it.
func message(t *testing.T, handle, packets uint64, chain string) []byte {
	t.Helper()
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.String(unix.NFTA_RULE_CHAIN, forward)
	e.Uint64(unix.NFTA_RULE_HANDLE, handle)
	e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(list *netlink.AttributeEncoder) error {
		list.Nested(unix.NFTA_LIST_ELEM, func(x *netlink.AttributeEncoder) error {
			x.String(unix.NFTA_EXPR_NAME, "counter")
			x.Nested(unix.NFTA_EXPR_DATA, func(d *netlink.AttributeEncoder) error {
				d.Uint64(unix.NFTA_COUNTER_PACKETS, packets)
				return nil
			})
			return nil
		})
		list.Nested(unix.NFTA_LIST_ELEM, func(x *netlink.AttributeEncoder) error {
			x.String(unix.NFTA_EXPR_NAME, "immediate")
			x.Nested(unix.NFTA_EXPR_DATA, func(d *netlink.AttributeEncoder) error {
				d.Nested(unix.NFTA_IMMEDIATE_DATA, func(v *netlink.AttributeEncoder) error {
					v.Nested(unix.NFTA_DATA_VERDICT, func(v *netlink.AttributeEncoder) error {
						v.String(unix.NFTA_VERDICT_CHAIN, chain)
						return nil
					})
					return nil
				})
				return nil
			})
			return nil
		})
		return nil
	})
	data, err := e.Encode()
	require.NoError(t, err)
	return append([]byte{byte(IPv4), 0, 0, 0}, data...)
}

func TestTrafficChangesNoRule(t *testing.T) {
	parse := func(data []byte) rule {
		r, err := parseRule(data)
		require.NoError(t, err)
		return r
	}
	one := parse(message(t, 7, 0, Chain))
	require.Equal(t, forward, one.chain)
	require.EqualValues(t, 7, one.handle)
	require.Equal(t, Chain, one.jump)
	require.Equal(t, one, parse(message(t, 7, 1000, Chain)))
	require.NotEqual(t, one.text, parse(message(t, 7, 0, "ELSEWHERE")).text)
	require.NotEqual(t, one, parse(message(t, 8, 0, Chain)))
}

func FuzzParseRule(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 5, 0, 1, 0, 'x'})
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = parseRule(data) })
}

// A watch that began before somebody else changed the rules is none over what was
// listed after that.
func TestWatchCoversWhatWasListed(t *testing.T) {
	w := nftWatch{rules: make([]rule, 3), jumps: 1}
	listed := listing{forward: []string{"-j X", jump}, chain: []string{"-j A", accept}}
	require.True(t, w.covers(&listed))
	more := listing{forward: listed.forward, chain: []string{"-j B", "-j A", accept}}
	require.False(t, w.covers(&more))
	twice := listing{forward: []string{jump, jump}, chain: []string{accept}}
	require.False(t, w.covers(&twice))
}
