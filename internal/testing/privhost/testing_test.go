package privhost

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A recorder is a test that notes how it ended.
type recorder struct{ ended string }

func (*recorder) Helper()                 {}
func (r *recorder) Skipf(string, ...any)  { r.ended = "skipped" }
func (r *recorder) Fatalf(string, ...any) { r.ended = "failed" }

func TestRequire(t *testing.T) {
	for _, test := range []struct {
		name     string
		reason   error
		required string
		want     string
	}{
		{"skips", unix.EPERM, "", "skipped"},
		{"required", unix.EPERM, "1", "failed"},
		{"no Main", errNoMain, "", "failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			saved := outside
			t.Cleanup(func() { outside = saved })
			outside = test.reason
			t.Setenv(marker, "")
			t.Setenv(RequireVariable, test.required)
			var r recorder
			Require(&r)
			require.Equal(t, test.want, r.ended)
		})
	}
	t.Run("inside", func(t *testing.T) {
		Require(t)
		var r recorder
		Require(&r, "go")
		require.Empty(t, r.ended)
		t.Setenv(RequireVariable, "")
		Require(&r, "go", "no-such-program")
		require.Equal(t, "skipped", r.ended)
		t.Setenv(RequireVariable, "1")
		Require(&r, "no-such-program")
		require.Equal(t, "failed", r.ended)

		t.Setenv(RequireVariable, "")
		r.ended = ""
		RequireRoot(&r)
		rightsOfRoot := unix.SetsockoptInt(socket(t), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<20) == nil
		require.Equal(t, rightsOfRoot, r.ended == "")
	})
}

func socket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
