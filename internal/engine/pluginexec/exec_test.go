package pluginexec

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// script writes a plugin that is a shell script and returns its path.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
	return path
}

// execute runs a script in a directory of its own with a clean environment, as
// a plugin that has all the time it wants.
func execute(t *testing.T, body string) ([]byte, error) {
	t.Helper()
	return (&Exec{}).ExecPlugin(t.Context(), script(t, body), nil, env(t))
}

func env(t *testing.T) []string {
	return []string{"PATH=/usr/bin:/bin", "DIR=" + t.TempDir()}
}

// soon fails the test where a call takes as long as a process that hangs.
func soon(t *testing.T, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("it waits for a process that nobody needs")
	}
}

// processIn waits until a plugin has written a process's ID into a file.
func processIn(t *testing.T, file string) int {
	t.Helper()
	var pid int
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil
	}, 5*time.Second, time.Millisecond)
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return pid
}

func requireDead(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, 5*time.Second, time.Millisecond, "process %d lives on", pid)
}

func TestExecPluginPassesOnWhatItIsGiven(t *testing.T) {
	t.Setenv("NOT_FOR_PLUGINS", "x")
	path := script(t, `echo "$CNI_COMMAND,$NOT_FOR_PLUGINS,$(/bin/cat)"; echo noise >&2`)
	out, err := (&Exec{}).ExecPlugin(t.Context(), path, []byte("conf"), []string{"CNI_COMMAND=ADD"})
	require.NoError(t, err)
	require.Equal(t, "ADD,,conf\n", string(out), "the environment is the one that was given, stderr is no result")

	found, err := (&Exec{}).FindInPath("plugin", []string{"/nonexistent", filepath.Dir(path)})
	require.NoError(t, err)
	require.Equal(t, path, found)
}

// TestDeadlineKillsTheGroup: a child of the plugin that holds none of its pipes
// would go on unseen.
func TestDeadlineKillsTheGroup(t *testing.T) {
	path, environ := script(t, `(trap "" TERM; exec sleep 300) </dev/null >/dev/null 2>&1 & echo $! >$DIR/child; wait`), env(t)
	child := strings.TrimPrefix(environ[1], "DIR=") + "/child"
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	soon(t, func() {
		done := make(chan struct{})
		go func() { defer close(done); _, err = (&Exec{}).ExecPlugin(ctx, path, nil, environ) }()
		pid := processIn(t, child)
		cancel()
		<-done
		requireDead(t, pid)
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, path)
}

func TestDeadlineOfAPluginThatIgnoresSignals(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	path := script(t, `trap "" TERM INT HUP; while :; do sleep 300; done`)
	var err error
	soon(t, func() { _, err = (&Exec{}).ExecPlugin(ctx, path, nil, env(t)) })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var cniErr *types.Error
	require.NotErrorAs(t, err, &cniErr, "the plugin said nothing")
}

// TestDaemonThatHoldsThePipes: what a plugin leaves behind in a session of its
// own is not killed, and not waited for.
func TestDaemonThatHoldsThePipes(t *testing.T) {
	const daemon = `setsid sh -c 'echo $$ >$DIR/child; exec sleep 300' & while ! [ -s $DIR/child ]; do sleep 0.01; done; `
	for name, c := range map[string]struct {
		body    string
		timeout time.Duration
		check   func(t *testing.T, out []byte, err error)
	}{
		"the plugin ends well": {daemon + `echo '{"a":1}'`, time.Minute, func(t *testing.T, out []byte, err error) {
			require.NoError(t, err)
			require.JSONEq(t, `{"a":1}`, string(out))
		}},
		"the plugin fails": {daemon + `echo '{"code":7,"msg":"no"}'; exit 1`, time.Minute, func(t *testing.T, _ []byte, err error) {
			var cniErr *types.Error
			require.ErrorAs(t, err, &cniErr)
			require.EqualValues(t, 7, cniErr.Code)
		}},
		"the plugin hangs": {daemon + `sleep 300`, time.Second, func(t *testing.T, _ []byte, err error) {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
			defer cancel()
			path, environ := script(t, c.body), env(t)
			soon(t, func() {
				out, err := (&Exec{}).ExecPlugin(ctx, path, nil, environ)
				c.check(t, out, err)
			})
			pid := processIn(t, strings.TrimPrefix(environ[1], "DIR=")+"/child")
			require.NoError(t, unix.Kill(pid, 0), "the daemon was spared")
		})
	}
}

// TestOutputWithoutTime: what a plugin wrote is read however late its reader comes, also
// where what it started holds the pipe.
func TestOutputWithoutTime(t *testing.T) {
	for _, body := range []string{`echo '{"a":1}'`, `(exec sleep 300) & echo $! >$DIR/child; echo '{"a":1}'`} {
		for range 50 {
			path, environ := script(t, body), env(t)
			out, err := runFor(t.Context(), exec.CommandContext(t.Context(), path), nil, environ, time.Nanosecond)
			require.NoError(t, err)
			require.Equal(t, `{"a":1}`+"\n", string(out))
			if child := strings.TrimPrefix(environ[1], "DIR=") + "/child"; strings.Contains(body, "sleep") {
				require.NoError(t, unix.Kill(processIn(t, child), unix.SIGKILL))
			}
		}
	}
}

func TestErrorForms(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want types.Error // a Msg that begins with a blank is only the end of it
	}{
		"of the specification":    {`echo '{"cniVersion":"1.0.0","code":11,"msg":"later","details":"d"}'; echo noise >&2; exit 1`, types.Error{Code: 11, Msg: "later", Details: "d"}},
		"code alone":              {`echo '{"code":7}'; exit 1`, types.Error{Code: 7}},
		"message alone":           {`echo '{"msg":"m"}'; exit 1`, types.Error{Msg: "m"}},
		"another JSON object":     {`echo '{"a":1}'; exit 1`, types.Error{Code: types.ErrUnknown, Msg: ": exit status 1", Details: `{"a":1}`}},
		"text on stderr":          {`echo half a result; echo "  out of cheese" >&2; exit 3`, types.Error{Code: types.ErrUnknown, Msg: ": exit status 3", Details: "out of cheese"}},
		"text on stdout":          {`echo "out of cheese"; exit 3`, types.Error{Code: types.ErrUnknown, Msg: ": exit status 3", Details: "out of cheese"}},
		"nothing":                 {`exit 4`, types.Error{Code: types.ErrUnknown, Msg: ": exit status 4", Details: "no output"}},
		"killed by a signal":      {`kill -9 $$`, types.Error{Code: types.ErrUnknown, Msg: ": signal: killed", Details: "no output"}},
		"a JSON error and exit 0": {`echo '{"code":7,"msg":"m"}'`, types.Error{}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := execute(t, c.body)
			if c.want == (types.Error{}) {
				require.NoError(t, err, "the exit status tells success from failure")
				return
			}
			var got *types.Error
			require.ErrorAs(t, err, &got)
			require.Equal(t, c.want.Code, got.Code)
			require.Equal(t, c.want.Details, got.Details)
			if strings.HasPrefix(c.want.Msg, ":") {
				require.True(t, strings.HasPrefix(got.Msg, "plugin /") && strings.HasSuffix(got.Msg, c.want.Msg), got.Msg)
			} else {
				require.Equal(t, c.want.Msg, got.Msg)
			}
		})
	}
}

func TestLongSpeechIsClipped(t *testing.T) {
	_, err := execute(t, `head -c 5000 /dev/zero | tr '\0' x >&2; exit 1`)
	require.ErrorContains(t, err, "xxx...")
	require.Less(t, len(err.Error()), 1500)
}

func TestPluginThatCannotBeStarted(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "plugin")
	_, err := (&Exec{}).ExecPlugin(t.Context(), absent, nil, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, absent)

	noProgram := filepath.Join(t.TempDir(), "plugin")
	require.NoError(t, os.WriteFile(noProgram, []byte("text"), 0o755))
	_, err = (&Exec{}).ExecPlugin(t.Context(), noProgram, nil, nil)
	require.ErrorIs(t, err, syscall.ENOEXEC)
	require.ErrorContains(t, err, noProgram)
}

// TestBusyBinary: an installer may hold the binary open for writing.
func TestBusyBinary(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "true")
	data, err := os.ReadFile("/bin/true")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(binary, data, 0o755))
	busy, err := os.OpenFile(binary, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer busy.Close()

	_, err = (&Exec{}).ExecPlugin(t.Context(), binary, nil, nil)
	require.ErrorIs(t, err, syscall.ETXTBSY)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = (&Exec{}).ExecPlugin(ctx, binary, nil, nil)
	require.ErrorIs(t, err, context.Canceled)

	released := time.AfterFunc(busyDelay/2, func() { busy.Close() })
	defer released.Stop()
	_, err = (&Exec{}).ExecPlugin(t.Context(), binary, nil, nil)
	require.NoError(t, err)
}

// TestLimitedForgetsTheRest: the writer neither blocks nor fails.
func TestLimitedForgetsTheRest(t *testing.T) {
	l := &limited{max: 10}
	for _, part := range []string{"01234", "5678", "9abc", "def"} {
		n, err := l.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.True(t, l.overflow)
	require.Equal(t, "0123456789", string(l.Bytes()))

	exact := &limited{max: 3}
	_, err := exact.Write([]byte("abc"))
	require.NoError(t, err)
	require.False(t, exact.overflow)
}

func TestEndlessOutputIsBounded(t *testing.T) {
	out, err := execute(t, `head -c 20000000 /dev/zero`)
	require.ErrorIs(t, err, ErrOutputTooLarge)
	require.Empty(t, out)
}

// TestDelWithTooMuchInItsEnvironment is done with what it needs; an ADD is not.
func TestDelWithTooMuchInItsEnvironment(t *testing.T) {
	path := script(t, `echo "$CNI_CONTAINERID $CNI_ARGS$OTHER"; PATH=$PATH:/none`)
	environ := append(env(t), "CNI_CONTAINERID=c", "CNI_ARGS=IgnoreUnknown=1;K="+strings.Repeat("x", 3<<20), "OTHER="+strings.Repeat("y", 3<<20))
	_, err := (&Exec{}).ExecPlugin(t.Context(), path, nil, append(environ, "CNI_COMMAND=ADD"))
	require.ErrorIs(t, err, syscall.E2BIG)
	out, err := (&Exec{}).ExecPlugin(t.Context(), path, nil, append(environ, "CNI_COMMAND=DEL"))
	require.NoError(t, err)
	require.Equal(t, "c IgnoreUnknown=true\n", string(out))
}
