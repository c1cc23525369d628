package record

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// poolFiles returns the files of pools.
func poolFiles(t *testing.T, s *Store) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.pools, "*"))
	require.NoError(t, err)
	return files
}

// TestPoolAlive: a pool is alive until its process releases it, or ends.
func TestPoolAlive(t *testing.T) {
	s := Open(t.TempDir())
	require.False(t, s.PoolAlive(poolPrefix+"0123456789abcdef"))
	pool, release, err := s.LockPool()
	require.NoError(t, err)
	other, releaseOther, err := Open(s.state).LockPool()
	require.NoError(t, err)
	require.NotEqual(t, pool, other)
	for range 2 { // looking does not end it
		require.True(t, s.PoolAlive(pool))
		require.True(t, Open(s.state).PoolAlive(pool), "for others as well")
		require.NoError(t, s.Sweep(t.Context()))
		require.Len(t, poolFiles(t, s), 2)
	}
	release()
	release()
	require.False(t, s.PoolAlive(pool))
	require.True(t, s.PoolAlive(other))
	releaseOther()
	require.False(t, s.PoolAlive(other))
	require.Empty(t, poolFiles(t, s))
}

// TestPoolOfFormerVersion: the pools of processes of former versions hold a byte of the lock
// file, and these processes look for the same with other pools.
func TestPoolOfFormerVersion(t *testing.T) {
	s := Open(t.TempDir())
	const former = "0123456789abcdef"
	require.False(t, s.PoolAlive(former))
	release, err := s.lockOffsets(t.Context(), "pool", poolOffset(former))
	require.NoError(t, err)
	require.True(t, s.PoolAlive(former))
	release()
	require.False(t, s.PoolAlive(former))

	pool, release, err := s.LockPool()
	require.NoError(t, err)
	formerAlive := func() bool {
		l, err := s.openLocks()
		require.NoError(t, err)
		defer l.close()
		return l.set(writeLock, poolOffset(pool), 1) != nil
	}
	require.True(t, formerAlive())
	release()
	require.False(t, formerAlive())
}

// TestPoolSwept: the file that a killed process has left is removed, and so is one that its
// process has not locked yet: then that process chooses another name.
func TestPoolSwept(t *testing.T) {
	s := Open(t.TempDir())
	for range 2 {
		pool := poolPrefix + "0123456789abcdef"
		fd, err := s.createPoolFile(pool)
		require.NoError(t, err)
		require.False(t, s.PoolAlive(pool))
		require.NoError(t, s.Sweep(t.Context()))
		require.Empty(t, poolFiles(t, s))
		require.ErrorIs(t, lockPoolFile(fd, s.poolFile(pool)), errPoolSwept)
		require.NoError(t, unix.Close(fd))
	}
}

const poolOwnerDir = "ALLOCNET_TEST_POOL_OWNER_DIR"

// TestPoolOfKilledProcess: the child of a killed process that has not begun its program yet
// does not keep the pool alive.
func TestPoolOfKilledProcess(t *testing.T) {
	if dir := os.Getenv(poolOwnerDir); dir != "" {
		ownPool(dir)
		return
	}
	s := open(t)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPoolOfKilledProcess$")
	cmd.Env = append(os.Environ(), poolOwnerDir+"="+s.state)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	_, err = cmd.StdinPipe() // the process ends with this one
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	pool, number, _ := strings.Cut(strings.TrimSpace(line), " ")
	child, err := strconv.Atoi(number)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Kill(child, unix.SIGKILL)) }()
	require.True(t, s.PoolAlive(pool))
	require.NoError(t, s.Sweep(t.Context()))
	require.True(t, s.PoolAlive(pool))

	kill()
	require.Error(t, cmd.Wait())
	require.NoError(t, unix.Kill(child, 0), "the child is alive")
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", child))
	require.NoError(t, err)
	inherited := 0
	for _, fd := range open {
		target, err := os.Readlink(fd)
		require.NoError(t, err)
		if target == s.poolFile(pool) {
			inherited++
		}
	}
	require.Positive(t, inherited, "with the descriptor of the file")
	require.False(t, s.PoolAlive(pool))
	require.NoError(t, s.Sweep(t.Context()))
	_, err = os.Stat(s.poolFile(pool))
	require.True(t, errors.Is(err, fs.ErrNotExist))
}

// ownPool locks a pool, forks a child that runs no program, prints the name of the pool and
// the process ID of the child, and waits to be killed.
func ownPool(dir string) {
	pool, _, err := Open(dir).LockPool()
	if err != nil {
		panic(err)
	}
	child := fork()
	fmt.Println(pool, child)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// fork returns the process ID of a child that sleeps for a minute. The child has no
// runtime of Go, so it makes only system calls.
//
//go:norace
//go:nosplit
func fork() uintptr {
	minute := unix.Timespec{Sec: 60}
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		panic(errno)
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&minute)), 0, 0)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return pid
}
