package privhost

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// helperVariable is an environment variable that makes the test binary call Main
// with fakeTests: "main" with, "main denied" without capabilities.
const helperVariable = "PRIVHOST_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperVariable) {
	case "main":
		os.Exit(Main(fakeTests{}))
	case "main denied":
		var r recorder
		status := 98
		Unprivileged(&r, func() { status = Main(fakeTests{}) })
		os.Exit(status)
	}
	os.Exit(Main(m))
}

// fakeTests stands in for testing.M.
type fakeTests struct{}

func (fakeTests) Run() int {
	fmt.Println("ran, inside:", privhost.Inside())
	return 5
}

// recorder is a TB that records how the test ended.
type recorder struct{ ended string }

func (*recorder) Helper()                 {}
func (r *recorder) Skipf(string, ...any)  { r.ended = "skipped" }
func (r *recorder) Fatalf(string, ...any) { r.ended = "failed" }

func TestRequire(t *testing.T) {
	name, value, _ := strings.Cut(privhost.Another(nil)[0], "=")
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
			t.Setenv(name, value)
			t.Setenv(skip.RequireVariable, test.required)
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
		t.Setenv(skip.RequireVariable, "")
		Require(&r, "go", "no-such-program")
		require.Equal(t, "skipped", r.ended)
		t.Setenv(skip.RequireVariable, "1")
		Require(&r, "no-such-program")
		require.Equal(t, "failed", r.ended)

		t.Setenv(skip.RequireVariable, "")
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

func TestMainWithAndWithoutHost(t *testing.T) {
	Require(t)
	for _, test := range []struct {
		name, helper, env string
		status            int
		stdout, stderr    string
	}{
		{"entered", "main", skip.RequireVariable + "=1", 5, "ran, inside: true\n", ""},
		{"skipped", "main denied", skip.RequireVariable + "=", 5, "ran, inside: false\n", "kernel tests are skipped: start private host: "},
		{"required", "main denied", skip.RequireVariable + "=1", 1, "", "there is no private host: start private host: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(privhost.Another(os.Environ()), helperVariable+"="+test.helper, test.env)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run()
			require.NotNil(t, cmd.ProcessState)
			require.Equal(t, test.status, cmd.ProcessState.ExitCode(), stderr.String())
			require.Equal(t, test.stdout, stdout.String())
			require.Contains(t, stderr.String(), test.stderr)
		})
	}
}

// TestReportNoGroups: bridges do not report groups, which would be tracked as connections.
func TestReportNoGroups(t *testing.T) {
	Require(t)
	set, err := os.ReadFile(reportsPath)
	require.NoError(t, err)
	require.Equal(t, "0\n", string(set))
}
