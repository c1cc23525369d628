// Package pluginexec runs CNI plugin binaries for libcni. Unlike libcni's own
// runner, it ends all children of a plugin at the deadline, limits the plugin's
// output, and names the plugin in errors.
package pluginexec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
)

const (
	maxStdout = 4 << 20 // a result is some kilobytes
	maxStderr = 16 << 10
	// pipeDelay is how long a child may hold the pipes of a plugin that has
	// ended.
	pipeDelay = 100 * time.Millisecond
	// busyTries bounds the attempts to run a binary while another program writes it.
	busyTries = 5
	busyDelay = 50 * time.Millisecond
)

// ErrOutputTooLarge: a plugin wrote more to stdout than any CNI result needs.
var ErrOutputTooLarge = fmt.Errorf("plugin wrote more than %d bytes to stdout", maxStdout)

// ErrNotStarted: the kernel could not start the plugin.
var ErrNotStarted = errors.New("plugin was not started")

// CallerVariable is set in the environment of plugins run by the daemon or by
// allocnet-cni. The plugin of type "allocnet" refuses to run with it: it would
// wait for itself, and a client that may only use the daemon must not choose
// its configuration.
const CallerVariable = "ALLOCNET_CALLER"

// Exec is an invoke.Exec. The zero value is ready, and safe for concurrent use.
type Exec struct{ version.PluginDecoder }

// FindInPath returns the path of a plugin binary. libcni's own function is in a package
// that imports an HTTP client and tracing, which every plugin binary of allocnet would
// have to initialize.
func (*Exec) FindInPath(plugin string, paths []string) (string, error) {
	if err := names.ValidatePluginType(plugin); err != nil {
		return "", fmt.Errorf("find plugin: %w", err)
	}
	for _, dir := range paths {
		path := filepath.Join(dir, plugin)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("find plugin %q: it is not in %q", plugin, paths)
}

// ExecPlugin runs the binary and returns its stdout. If the plugin reports an error as
// the CNI specification defines it, the error is a *types.Error. If the plugin was
// killed at the end of the context, errors.Is finds the error of the context.
func (*Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	for try := 1; ; try++ {
		out, err := run(ctx, path, stdin, environ)
		if errors.Is(err, syscall.E2BIG) && slices.Contains(environ, "CNI_COMMAND=DEL") {
			return run(ctx, path, stdin, necessary(environ))
		}
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(busyDelay):
		}
	}
}

// necessary returns a reduced environment for a DEL if the kernel rejects the
// whole one as too large. ADD could not be started with the whole one either,
// so nothing that is missing has influenced it.
func necessary(environ []string) []string {
	kept := []string{"CNI_ARGS=IgnoreUnknown=true"}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if name == "PATH" || name == CallerVariable || strings.HasPrefix(name, "CNI_") && name != "CNI_ARGS" {
			kept = append(kept, kv)
		}
	}
	return kept
}

func run(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return runFor(ctx, exec.CommandContext(ctx, path), stdin, environ, pipeDelay)
}

// runFor runs a plugin, and then waits up to delay for child processes that hold its
// pipes open.
func runFor(ctx context.Context, c *exec.Cmd, stdin []byte, environ []string, delay time.Duration) ([]byte, error) {
	stdout, err := newOutput(maxStdout)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	stderr, err := newOutput(maxStderr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotStarted, errors.Join(err, stdout.writer.Close(), stdout.reader.Close()))
	}
	c.Env, c.Stdin, c.Stdout, c.Stderr = environ, bytes.NewReader(stdin), stdout.writer, stderr.writer
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = delay
	err = c.Start()
	stdout.begin()
	stderr.begin()
	if err == nil {
		err = c.Wait()
	}
	if errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		err = nil // the plugin succeeded; a child process holds a pipe open
	}
	endErr := stdout.end(delay)
	_ = stderr.end(0) // only for the error message, so it may be incomplete
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, fmt.Errorf("plugin %s was killed: %w", c.Path, ctx.Err())
	case endErr != nil:
		return nil, fmt.Errorf("output of plugin %s: %w", c.Path, endErr)
	case stdout.overflow:
		return nil, fmt.Errorf("plugin %s: %w", c.Path, ErrOutputTooLarge)
	case err == nil:
		return stdout.Bytes(), nil
	case c.Process == nil:
		return nil, fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	return nil, pluginError(c.Path, err, stdout.Bytes(), stderr.Bytes())
}

// pluginError returns the error of a plugin that failed or could not be
// started.
func pluginError(path string, err error, stdout, stderr []byte) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("run plugin %s: %w", path, err)
	}
	var e types.Error
	if json.Unmarshal(stdout, &e) == nil && (e.Code != 0 || e.Msg != "") {
		for text, meaning := range meanings {
			if strings.Contains(e.Msg+e.Details, text) {
				return meaningful{&e, meaning}
			}
		}
		return &e
	}
	said := strings.TrimSpace(string(stderr))
	if said == "" {
		said = strings.TrimSpace(string(stdout))
	}
	if said == "" {
		said = "no output"
	}
	// No plugin reports this code, so it cannot be taken for a finding of CHECK.
	unreported := types.NewError(types.ErrUnknown, fmt.Sprintf("plugin %s: %v", path, err), clip(said))
	if exit.ExitCode() == 1 {
		return meaningful{unreported, errNotReported}
	}
	return unreported
}

// errNotReported: a plugin exited with status 1, and without an error on stdout. A program that
// panics exits with another status.
var errNotReported = errors.New("the plugin reported no error")

// LacksCommand reports whether an error of a plugin says that it does not have the command, or
// not in its CNI versions. Scripts often only exit with status 1 then.
func LacksCommand(err error) bool {
	var coded *types.Error
	if !errors.As(err, &coded) {
		return false
	}
	return coded.Code == types.ErrIncompatibleCNIVersion || strings.Contains(coded.Msg+coded.Details, "CNI_COMMAND") || errors.Is(err, errNotReported)
}

// meanings are the errors of host-local that it reports only in its texts.
var meanings = map[string]error{
	allocnet.ErrExhausted.Error():   allocnet.ErrExhausted,
	"is not available in range set": allocnet.ErrAddressUnavailable,
}

// meaningful is an error of a plugin that means another error as well.
type meaningful struct {
	said  *types.Error
	means error
}

func (e meaningful) Error() string { return e.said.Error() }

// Unwrap returns the plugin's error and what it means.
func (e meaningful) Unwrap() []error { return []error{e.said, e.means} }

func clip(s string) string {
	const most = 1024
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
