package configurator

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/portmap"
)

// withDescriptors calls do while new descriptors must be below most.
func withDescriptors(t *testing.T, most uint64, do func() error) error {
	t.Helper()
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: before.Max}))
	err := do()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	return err
}

// firstDescriptor returns a number above those of all descriptors of the process, which may be many, and takes the
// free ones below until the test ends.
func firstDescriptor(t *testing.T) uint64 {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	last := 0
	for _, e := range open {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		last = max(last, fd)
	}
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
		if fd > last {
			return uint64(fd) + 1
		}
	}
}

// TestNetnsWithoutDescriptors: a namespace that cannot be opened for lack of descriptors is not invalid.
func TestNetnsWithoutDescriptors(t *testing.T) {
	h, _, _ := detachHost(t)
	r, err := h.store.Get("a")
	require.NoError(t, err)
	err = withDescriptors(t, 3, func() error { _, err := netns.Open(r); return err })
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorIs(t, err, ErrLimit)
	require.NotErrorIs(t, err, ErrInvalidAllocation)
	require.False(t, netns.IsLost(err))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
}

// TestWithoutDescriptors runs operations with one descriptor more each time, until they succeed. The
// errors before that have the cause, and blame neither the request nor the allocation.
func TestWithoutDescriptors(t *testing.T) {
	h, a, leases := detachHost(t)
	h.cfg.Retry.Attempts = 1
	b := h.alloc("b")
	b.Ports = []portmap.Port{{To: 80}}
	for _, c := range []struct {
		name    string
		operate func() error
	}{
		{"setup again", func() error { _, err := h.Setup(t.Context(), a); return err }},
		{"setup", func() error { _, err := h.Setup(t.Context(), b); return err }},
		{"attach and detach", func() error {
			if _, err := h.Attach(t.Context(), "a", "more", AttachOptions{}); err != nil {
				return err
			}
			_, err := h.Detach(t.Context(), "a", "eth1", "")
			return err
		}},
		{"update", func() error {
			_, err := h.Update(t.Context(), "a", Change{Publish: []portmap.Port{{To: 81}}})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			failed, first := false, firstDescriptor(t)
			for more := uint64(0); ; more++ {
				require.Less(t, more, uint64(100))
				err := withDescriptors(t, first+more, c.operate)
				if err == nil {
					break
				}
				failed = true
				require.ErrorIs(t, err, unix.EMFILE)
				for _, wrong := range []error{ErrNotFound, ErrInvalidAllocation, ErrNoPort, ErrStateDir} {
					require.NotErrorIs(t, err, wrong)
				}
				_, err = h.Recover(t.Context()) // finishes what has begun
				require.NoError(t, err)
				_, _ = h.Detach(t.Context(), "a", "eth1", "")
			}
			require.True(t, failed)
		})
	}
	require.NoError(t, h.Teardown(t.Context(), b))
	h.end(a, leases)
}
