package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// limitVariable makes the test binary create a sandbox and print the error.
const limitVariable = "ALLOCNET_TEST_SANDBOX_LIMIT"

func TestMain(m *testing.M) {
	if os.Getenv(limitVariable) != "" {
		_, err := New()
		fmt.Println(errors.Is(err, allocnet.ErrLimit), err)
		os.Exit(0)
	}
	os.Exit(privhost.Main(m))
}

// needKernel skips the test outside a private host, and checks that the test
// leaves nothing.
func needKernel(t *testing.T) {
	t.Helper()
	privhost.Require(t)
	before := snapshot(t)
	t.Cleanup(func() { require.Empty(t, hostsnap.Diff(before, snapshot(t))) })
}

func snapshot(t *testing.T) hostsnap.Snapshot {
	t.Helper()
	s, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	return s
}

// create makes a sandbox that lasts as long as the test.
func create(t *testing.T, name string) *Sandbox {
	t.Helper()
	s, err := Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return s
}

// iproute2 runs ip with the words of command, and returns what it says.
func iproute2(t *testing.T, command string) string {
	t.Helper()
	privhost.Require(t, "ip")
	output, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
	require.NoError(t, err, string(output))
	return string(output)
}

// threadNamespace identifies the network namespace that the calling thread is in.
func threadNamespace() (Identity, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return Identity{}, err
	}
	defer file.Close()
	return identify(file)
}

// requireAllAtHome looks at the namespaces of all threads.
func requireAllAtHome(t *testing.T) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	require.NoError(t, err)
	require.NotEmpty(t, tasks)
	for _, task := range tasks {
		var stat unix.Stat_t
		if err := unix.Stat(task, &stat); err == unix.ENOENT {
			continue // The thread has just ended.
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, home, Identity{Device: stat.Dev, Inode: stat.Ino}, task)
	}
}

// resources returns the numbers of descriptors and threads, which a leak would
// increase.
func resources(t *testing.T) (descriptors, threads int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(files), len(tasks)
}

// dropPower removes the calling thread's right to change its namespace.
func dropPower() error {
	var none [2]unix.CapUserData
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
}
