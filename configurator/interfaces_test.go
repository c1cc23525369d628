package configurator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestSetupAfterTheNamespaceIsGone: an allocation whose namespace was destroyed
// is set up in a new one under the same ID. While the old one exists, it is
// not.
func TestSetupAfterTheNamespaceIsGone(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	first, err := sandbox.Create("a")
	require.NoError(t, err)
	require.NoError(t, first.Close()) // the process's last reference to the namespace
	a := Allocation{ID: "a", Netns: first.Path()}
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	old, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	link := hostLink(t, old)

	living, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	require.NoError(t, sandbox.Destroy(a.Netns))
	replaced, err := sandbox.Create("a")
	require.NoError(t, err)
	defer func() { require.NoError(t, replaced.Destroy()) }()
	require.Equal(t, a.Netns, replaced.Path())
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	require.ErrorContains(t, err, "destroy that namespace")

	require.NoError(t, living.Close())
	require.Eventually(t, func() bool {
		_, err := netlink.LinkByName(link)
		return err != nil
	}, 10*time.Second, 5*time.Millisecond, "the kernel removes what was in the namespace")

	other := a
	other.Ports = nil
	_, err = h.Setup(t.Context(), other)
	require.ErrorIs(t, err, ErrDifferent, "another request")
	status, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, status.Created)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
}

// hostLink returns the name of the host's end of the allocation's interface.
func hostLink(t *testing.T, s *Status) string {
	t.Helper()
	for _, i := range s.Interfaces {
		if link, err := netlink.LinkByName(i.Name); i.Sandbox == "" && err == nil && link.Type() == "veth" {
			return i.Name
		}
	}
	require.Fail(t, "no veth")
	return ""
}
