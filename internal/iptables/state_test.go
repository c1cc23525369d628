package iptables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRepair(t *testing.T) {
	chains := func(names ...string) map[string]bool {
		exists := map[string]bool{}
		for _, name := range names {
			exists[name] = true
		}
		return exists
	}
	tests := map[string]struct {
		now    state
		admins string
		want   []string
	}{
		"nothing there": {state{}, "A B", []string{
			"-N ALLOCNET-FORWARD", "-N A", "-N B",
			"-A ALLOCNET-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT",
			"-I ALLOCNET-FORWARD 1 -j B", "-I ALLOCNET-FORWARD 1 -j A",
			"-I FORWARD 1 -m comment --comment allocnet -j ALLOCNET-FORWARD",
		}},
		"all there": {state{forward: []string{"-j X", jump}, chain: []string{"-j A", "-j B", "-j DROP", accept}, exists: chains(AcceptChain, "A", "B")}, "B A", nil},
		"no admins": {state{forward: []string{jump}, chain: []string{accept}, exists: chains(AcceptChain)}, "", nil},
		"another admin": {state{forward: []string{jump}, chain: []string{"-j A", accept}, exists: chains(AcceptChain, "A")}, "B",
			[]string{"-N B", "-I ALLOCNET-FORWARD 1 -j B"}},
		"too late": {state{forward: []string{jump}, chain: []string{accept, "-j A"}, exists: chains(AcceptChain, "A")}, "A",
			[]string{"-D ALLOCNET-FORWARD -j A", "-I ALLOCNET-FORWARD 1 -j A"}},
		"surplus": {state{forward: []string{jump, jump}, chain: []string{"-j A", accept, accept, accept}, exists: chains(AcceptChain, "A")}, "A", []string{
			"-D ALLOCNET-FORWARD " + accept, "-D ALLOCNET-FORWARD " + accept, "-D ALLOCNET-FORWARD " + accept,
			"-A ALLOCNET-FORWARD " + accept,
			"-D FORWARD " + jump, "-D FORWARD " + jump,
			"-I FORWARD 1 " + jump,
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, test.now.repair(strings.Fields(test.admins)))
		})
	}
}

func TestMissing(t *testing.T) {
	now := state{forward: []string{jump, jump}, chain: []string{"-j A", accept, accept, "-j A"}}
	require.Empty(t, now.missing([]string{"A"}), "too much is not too little")
	require.Len(t, (&state{}).missing([]string{"A"}), 3)
	require.Equal(t, []string{"ALLOCNET-FORWARD does not ask B first"}, now.missing([]string{"B"}))
}
