package sockdiag

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProcessThatBeganFirst: of the processes that have a socket open, the one that made it is named, and not a child
// that has yet to run another program.
func TestProcessThatBeganFirst(t *testing.T) {
	proc := t.TempDir()
	for _, p := range []struct {
		pid   int
		name  string
		start int
		open  string
	}{{1000, "child", 502, "socket:[7]"}, {200, "a) server", 500, "socket:[7]"}, {30, "child", 501, "socket:[7]"}, {4, "init", 1, "/dev/null"}, {201, "same", 500, "socket:[7]"}} {
		dir := filepath.Join(proc, fmt.Sprint(p.pid))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
		require.NoError(t, os.Symlink(p.open, filepath.Join(dir, "fd", "3")))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "comm"), []byte(p.name+"\n"), 0o644))
		stat := fmt.Sprintf("%d (%s) S 1%s %d 99 98\n", p.pid, p.name, strings.Repeat(" 0", 17), p.start)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o644))
	}
	require.Equal(t, map[uint32]Process{7: {200, "a) server"}}, processes(proc, []uint32{7, 0}))
	require.Empty(t, processes(proc, nil))
	require.NotZero(t, startOf("/proc/self"))
	require.NotEqual(t, startOf("/proc/self"), startOf(filepath.Join(proc, "gone")))
	require.Less(t, startOf("/proc/1"), startOf("/proc/self")+1)
}
