// Package fakeconmon starts processes that reserve host ports as Podman's conmon does.
package fakeconmon

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Start starts a process called name with the arguments with which Podman starts conmon
// for a container. It has a socket open that is bound to a port, and never reads from it.
// It ends with the test, or when stop is called. Start returns its ID.
func Start(t testing.TB, name, container, network, address string) (pid int, stop func()) {
	t.Helper()
	var bound interface {
		io.Closer
		File() (*os.File, error)
	}
	if strings.HasPrefix(network, "tcp") {
		l, err := net.Listen(network, address)
		require.NoError(t, err)
		bound = l.(*net.TCPListener)
	} else {
		l, err := net.ListenPacket(network, address)
		require.NoError(t, err)
		bound = l.(*net.UDPConn)
	}
	file, err := bound.File()
	require.NoError(t, err)
	// The name of a process is that of the file, also of a symlink. The shell waits for
	// commands of its standard input.
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.Symlink(shell, link))
	c := exec.Command(link)
	c.Args = []string{"sh", "-s", "--", "--api-version", "1", "-c", container, "-u", container}
	c.ExtraFiles = []*os.File{file}
	stdin, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	require.NoError(t, file.Close())
	require.NoError(t, bound.Close())
	ended := false
	stop = func() {
		if !ended {
			ended = true
			_ = stdin.Close()
			_ = c.Wait()
		}
	}
	t.Cleanup(stop)
	return c.Process.Pid, stop
}
