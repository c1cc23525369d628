package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestDestroyTakesTheLinks(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(int(s.file.Fd()))}
	require.NoError(t, netlink.LinkAdd(veth))
	require.NoError(t, s.Destroy())
	require.Eventually(t, func() bool {
		_, err := netlink.LinkByName("veth0")
		return errors.As(err, &netlink.LinkNotFoundError{})
	}, 10*time.Second, time.Millisecond, "the namespace lives on")
}

func TestDestroy(t *testing.T) {
	needKernel(t)
	create(t, "keep") // makes the directory
	t.Run("missing", func(t *testing.T) {
		require.NoError(t, Destroy("/run/netns/missing"))
		require.NoError(t, Destroy("/run/missing/missing"))
	})
	t.Run("twice", func(t *testing.T) {
		s, err := Create("c1")
		require.NoError(t, err)
		require.NoError(t, s.Destroy())
		require.NoError(t, s.Destroy())
		require.NoError(t, Destroy(s.Path()))
	})
	t.Run("left by a creator that was cut short", func(t *testing.T) {
		require.NoError(t, os.WriteFile("/run/netns/c1", nil, 0o444))
		require.NoError(t, Destroy("/run/netns/c1"))
		require.NoFileExists(t, "/run/netns/c1")
	})
}

func TestDestroyManyAtOnce(t *testing.T) {
	needKernel(t)
	create(t, "keep") // makes the directory
	for range 50 {
		s, err := Create("c1")
		require.NoError(t, err)
		var wait sync.WaitGroup
		for range 8 {
			wait.Go(func() {
				if err := Destroy(s.Path()); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		require.NoFileExists(t, s.Path())
		require.NoError(t, s.Close())
	}
}

// TestDestroySparesTheRest passes paths that are not sandboxes.
func TestDestroySparesTheRest(t *testing.T) {
	needKernel(t)
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	mount := filepath.Join(dir, "mount")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	require.NoError(t, os.Symlink("file", link))
	require.NoError(t, os.Mkdir(mount, 0o700))
	require.NoError(t, unix.Mount("tmpfs", mount, "tmpfs", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mount, 0)) })
	for _, path := range []string{file, link, mount, dir, "/proc/self/ns/net"} {
		err := Destroy(path)
		require.ErrorIs(t, err, ErrNotNamespace, path)
		require.ErrorContains(t, err, `destroy sandbox "`+path+`": `)
	}
	require.FileExists(t, file)
	require.FileExists(t, link)
	require.Contains(t, snapshot(t).String(), "mount "+mount+" tmpfs\n")
}
