package configurator

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSweepOfTheSetUp: an allocation that was set up after GC has listed the records keeps its
// labels and its policy, also if its container has another ID.
func TestSweepOfTheSetUp(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	a := h.alloc("c")
	a.ID, a.ContainerID, a.Interface, a.Labels = "c.eth0", "c", "eth0", map[string]string{"app": "web"}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	members, err := h.policies.Members("")
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.NoError(t, h.sweepMember(t.Context(), members[0]))
	left, err := h.policies.Members("")
	require.NoError(t, err)
	require.Equal(t, members, left)
	require.NoError(t, h.Check(t.Context(), a))

	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: a.ID}))
	h.requireNoRecords()
	left, err = h.policies.Members("")
	require.NoError(t, err)
	require.Empty(t, left)
}
