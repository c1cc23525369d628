package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// message is a rule that counts and jumps, as the kernel sends it.
func message(handle, packets uint64, chain string) []byte {
	var r sock.Requests
	nested := func(kind uint16, inner func()) {
		nest := r.Nest(kind)
		inner()
		r.End(nest)
	}
	r.Append(byte(IPv4), 0, 0, 0)
	r.CString(unix.NFTA_RULE_CHAIN, forwardChain)
	r.Uint64BE(unix.NFTA_RULE_HANDLE, handle)
	nested(unix.NFTA_RULE_EXPRESSIONS, func() {
		nested(unix.NFTA_LIST_ELEM, func() {
			r.CString(unix.NFTA_EXPR_NAME, "counter")
			nested(unix.NFTA_EXPR_DATA, func() { r.Uint64BE(unix.NFTA_COUNTER_PACKETS, packets) })
		})
		nested(unix.NFTA_LIST_ELEM, func() {
			r.CString(unix.NFTA_EXPR_NAME, "immediate")
			nested(unix.NFTA_EXPR_DATA, func() {
				nested(unix.NFTA_IMMEDIATE_DATA, func() {
					nested(unix.NFTA_DATA_VERDICT, func() { r.CString(unix.NFTA_VERDICT_CHAIN, chain) })
				})
			})
		})
	})
	return r.Data()
}

func TestTrafficChangesNoRule(t *testing.T) {
	one := parseRule(message(7, 0, AcceptChain))
	require.Equal(t, forwardChain, one.chain)
	require.EqualValues(t, 7, one.handle)
	require.Equal(t, AcceptChain, one.jump)
	require.Equal(t, one, parseRule(message(7, 1000, AcceptChain)))
	require.NotEqual(t, one.text, parseRule(message(7, 0, "ELSEWHERE")).text)
	require.NotEqual(t, one, parseRule(message(8, 0, AcceptChain)))
}

func FuzzParseRule(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 5, 0, 1, 0, 'x'})
	f.Fuzz(func(_ *testing.T, data []byte) { parseRule(data) })
}

// TestSnapshotShowsWhatWasListed: a snapshot from before a change by another
// program does not prove a listing from after it.
func TestSnapshotShowsWhatWasListed(t *testing.T) {
	w := nftSnapshot{rules: make([]rule, 3), jumps: 1}
	listed := state{forward: []string{"-j X", jump}, chain: []string{"-j A", accept}}
	require.True(t, w.shows(&listed))
	more := state{forward: listed.forward, chain: []string{"-j B", "-j A", accept}}
	require.False(t, w.shows(&more))
	twice := state{forward: []string{jump, jump}, chain: []string{accept}}
	require.False(t, w.shows(&twice))
}
