package cleanup

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	require.Equal(t, []string{
		"CNI-68966f9f256fea8957de7869", "CNI-DN-68966f9f256fea8957de7", "CNI-SN-68966f9f256fea8957de7",
	}, chainNames("one", "id"))
	for _, name := range chainNames("one", "id") {
		require.Regexp(t, ownChain, name)
	}
	require.Equal(t, "6fd94d501e58f0aa-e766de567ef6c543", masqHash("unit-test", "eth0", "four"))
}

func TestSharedChainsAreNobodysOwn(t *testing.T) {
	for _, name := range []string{
		"CNI-FORWARD", "CNI-ADMIN", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-SNAT",
		"CNI-ISOLATION-STAGE-1", "POSTROUTING", "CNI-68966f9f256fea8957de78690", "xCNI-68966f9f256fea8957de7869",
	} {
		require.NotRegexp(t, ownChain, name)
	}
}

func TestComments(t *testing.T) {
	require.Equal(t, []string{
		`name: "a\"b" id: "x"`, `dnat name: "a"b" id: "x"`, `snat name: "a"b" id: "x"`,
	}, comments(`a"b`, "x"))
	for _, comment := range comments(strings.Repeat("n", 300), "x")[1:] {
		require.LessOrEqual(t, len(comment), 256)
		require.True(t, strings.HasSuffix(comment, "..."))
	}
}

func TestCommentHasID(t *testing.T) {
	tests := []struct {
		comment string
		want    bool
	}{
		{`name: "net" id: "abc"`, true},
		{`dnat name: "net" id: "abc"`, true},
		{`snat name: "net" id: "abc"`, true},
		{`name: "n\"e.*t" id: "abc"`, true},
		{`name: "net" id: "abcd"`, false},
		{`name: "net" id: "xabc"`, false},
		{`name: "x\" id: \"abc" id: "y"`, false},
		{`name: "x\" id: \"abc"`, false},
		{`somebody's id: "abc"`, false},
		{`abc`, false},
		{``, false},
	}
	for _, test := range tests {
		require.Equal(t, test.want, commentHasID(test.comment, "abc"), test.comment)
	}
}

func TestMasqHashHasID(t *testing.T) {
	comment := masqHash("net", "eth0", "abc") + ", net: net, if: eth0, id: abc"
	require.True(t, masqHashHasID(comment, "abc"))
	require.True(t, masqHashHasID(strings.TrimSuffix(comment, "bc"), "abc"), "cut off")
	require.False(t, masqHashHasID(comment, "abcd"))
	require.False(t, masqHashHasID(strings.Replace(comment, "if: eth0", "if: eth1", 1), "abc"))
	require.False(t, masqHashHasID("", "abc"))
}
