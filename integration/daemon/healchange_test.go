package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// TestHealUnfinishedDetach: a removal of an attachment that fails is finished by the daemon, without
// another request and without the check at an interval.
func TestHealUnfinishedDetach(t *testing.T) {
	d := newHealingHost(t, onlyNotified, testbed.Chain("bridge", testbed.V4Only, ""))
	leases := t.TempDir()
	more := testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24"}, "")
	more[1]["ipam"].(map[string]any)["dataDir"] = leases
	d.h.Network("more", more...)
	id := d.allocs[0].ID
	_, err := d.client().Attach(t.Context(), id, "more", configurator.AttachOptions{})
	require.NoError(t, err)
	lease := filepath.Join(leases, "more", "10.98.0.2")
	require.FileExists(t, lease)

	require.NoError(t, unix.Mount(leases, leases, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(leases, unix.MNT_DETACH) })
	require.NoError(t, unix.Mount("", leases, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	_, err = d.client().Detach(t.Context(), id, "eth1", "")
	require.ErrorIs(t, err, configurator.ErrIncomplete)
	require.NoError(t, unix.Mount("", leases, "", unix.MS_REMOUNT|unix.MS_BIND, ""))

	d.within("end of the removal", func() error {
		if _, err := os.Stat(lease); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the lease exists, or cannot be looked at: %v", err)
		}
		return nil
	})
	d.awaitHealthy()
}
