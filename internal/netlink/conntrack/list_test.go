package conntrack

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestListAndDeleteMatching of both families, through the process's sockets.
func TestListAndDeleteMatching(t *testing.T) {
	privhost.Require(t)
	flush(t)
	t.Cleanup(func() { flush(t) })
	c := Here()
	list := func(family uint8) (entries []Entry) {
		require.NoError(t, c.List(t.Context(), family, func(e Entry) { entries = append(entries, e) }))
		return entries
	}
	require.Empty(t, list(unix.AF_INET))
	kept := track(t, unix.IPPROTO_TCP, "192.0.2.1:1", "192.0.2.2:80", "10.0.0.5:8080")
	track(t, unix.IPPROTO_UDP, "192.0.2.1:2", "192.0.2.2:53", "10.0.0.5:53")
	six := track(t, unix.IPPROTO_UDP, "[2001:db8::1]:2", "[2001:db8::2]:53", "[fd00::5]:53")
	require.Len(t, list(unix.AF_INET), 2)
	entries := list(unix.AF_INET6)
	require.Len(t, entries, 1)
	e := entries[0]
	require.Equal(t, "17 2001:db8::1 2001:db8::2 53 fd00::5", fmt.Sprint(e.Protocol, e.Source, e.Destination, e.Port, e.Answers))

	require.NoError(t, c.DeleteMatching(t.Context(), unix.AF_INET, func(e Entry) bool { return e.Port == 53 }))
	require.ElementsMatch(t, []string{kept, six}, tracked(t, c))
	require.NoError(t, c.Close(), "which does nothing")
	require.NoError(t, c.DeleteMatching(t.Context(), unix.AF_INET6, func(Entry) bool { return true }))
	require.Equal(t, []string{kept}, tracked(t, c))
}

// TestListWithoutPermission is an error, unless the counter shows that there is nothing.
func TestListWithoutPermission(t *testing.T) {
	privhost.Require(t)
	flush(t)
	t.Cleanup(func() { flush(t) })
	look := func() (list, remove error) {
		privhost.Unprivileged(t, func() {
			c := New()
			c.noText.Store(true) // which root reads without capabilities
			list = c.List(t.Context(), unix.AF_INET, func(Entry) {})
			remove = c.DeleteMatching(t.Context(), unix.AF_INET, func(Entry) bool { return true })
			require.NoError(t, c.Close())
		})
		return list, remove
	}
	list, remove := look()
	require.NoError(t, list)
	require.NoError(t, remove)
	track(t, unix.IPPROTO_TCP, "192.0.2.1:1", "192.0.2.2:2", "192.0.2.2:2")
	list, remove = look()
	require.ErrorIs(t, list, fs.ErrPermission)
	require.ErrorIs(t, remove, fs.ErrPermission)
}

func TestFill(t *testing.T) {
	c := opened(t, true)
	require.Zero(t, c.count())
	entries, limit, err := Fill()
	require.NoError(t, err)
	require.Zero(t, entries)
	text, err := os.ReadFile(limitPath)
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(text)), strconv.Itoa(limit))
	track(t, unix.IPPROTO_UDP, "10.1.0.1:1000", "10.1.0.2:2000", "10.1.0.2:2000")
	entries, _, err = Fill()
	require.NoError(t, err)
	require.Equal(t, 1, entries)
}
