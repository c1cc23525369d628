package rtnl_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestNewestSandboxComesFirst: the kernel walks the numbers of namespaces from the lowest,
// so a new sandbox gets a lower one than all before, also from another process. The first
// one of a process, and those that the kernel has numbered already, keep its choice.
func TestNewestSandboxComesFirst(t *testing.T) {
	h := open(t)
	attach := func(h *rtnl.Host, name string) int {
		v := veth(name)
		require.NoError(t, h.CreateVeth(v, newSandbox(t, name)))
		return numberOf(t, v.Name)
	}
	first := attach(h, "n0")
	require.Less(t, first, 1000)
	var chosen []int
	for i := range 5 {
		chosen = append(chosen, attach(h, fmt.Sprintf("n%d", i+1)))
	}
	descending := func(a, b int) int { return b - a }
	require.True(t, slices.IsSortedFunc(chosen, descending), chosen)
	require.Greater(t, chosen[4], 1<<20)

	other := rtnl.OpenHost()
	defer other.Close()
	attach(other, "o0")
	require.Less(t, attach(other, "o1"), chosen[4])
}

// numberOf returns the number of the namespace of a link's peer.
func numberOf(t *testing.T, link string) int {
	t.Helper()
	out, err := exec.Command("ip", "link", "show", "dev", link).CombinedOutput()
	require.NoError(t, err, "%s", out)
	// ip shows the name of the namespace where it has one.
	found := regexp.MustCompile(`link-netns(?:id)? (\S+)`).FindSubmatch(out)
	require.NotNil(t, found, "%s", out)
	if n, err := strconv.Atoi(string(found[1])); err == nil {
		return n
	}
	out, err = exec.Command("ip", "netns", "list").CombinedOutput()
	require.NoError(t, err, "%s", out)
	id := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(string(found[1])) + ` \(id: (\d+)\)`).FindSubmatch(out)
	require.NotNil(t, id, "%s", out)
	n, err := strconv.Atoi(string(id[1]))
	require.NoError(t, err)
	return n
}
