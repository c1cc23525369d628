package integration

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// TestSwappedNetns: somebody leads the path of a namespace to the host's and back all
// the time. Whatever is set up is so in the namespace, and nothing gets into the host.
func TestSwappedNetns(t *testing.T) {
	each(t, engines, func(t *testing.T, w way) {
		h := newHost(t, w.engine, func(c *configurator.Config) { c.Network = "net" })
		h.network("net", chain("bridge", families{v4: "10.77.0.0/24"}, w.backend)...)
		a := h.alloc("swapped")
		real := a.Netns
		a.Netns = swap(t, real)
		for set := 0; set < 5; {
			_, err := h.Setup(h.ctx(), a)
			if errors.Is(err, sandbox.ErrHostNamespace) {
				continue
			}
			require.NoError(t, err)
			set++
			_, err = netlink.LinkByName("eth0")
			require.ErrorAs(t, err, &netlink.LinkNotFoundError{}, "on the host")
			within(t, real, func() error {
				_, err := netlink.LinkByName("eth0")
				return err
			})
			h.tearDown(a)
		}
	})
}

// swap is a symbolic link to a namespace, and to the host's in turns, until the test
// ends.
func swap(t *testing.T, netns string) string {
	t.Helper()
	dir := t.TempDir()
	path, draft := filepath.Join(dir, "netns"), filepath.Join(dir, "draft")
	targets := []string{"/proc/self/ns/net", netns}
	require.NoError(t, os.Symlink(netns, path))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := errors.Join(os.Symlink(targets[i%2], draft), os.Rename(draft, path)); err != nil {
				done <- err
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		require.NoError(t, <-done)
	})
	return path
}
