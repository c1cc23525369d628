// Package programs has the programs that tests start: those of this module with their shims, the fake plugin
// and cnitool. They are built once for all packages, as make build builds them.
package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/flock"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// Variable is an environment variable with the directory of programs that are built already, as make test has
// it. Without it, each test binary has make build what has changed.
const Variable = "ALLOCNET_TEST_PROGRAMS"

// FakePlugin is the name of the program of package fakeplugin.
const FakePlugin = "plugin"

// Dir returns the directory of the programs. It belongs to all tests: see [Copy].
var Dir = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(Variable); dir != "" {
		return dir, nil
	}
	top, err := refplugins.Checkout()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(top, "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := flock.Wait(context.Background(), int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", dir, err)
	}
	out, err := exec.Command("make", "--no-print-directory", "-C", top, "programs").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the programs: %w: %s", err, out)
	}
	return dir, nil
})

// Path returns the path of one program.
func Path(t testing.TB, name string) string {
	t.Helper()
	dir, err := Dir()
	require.NoError(t, err)
	return filepath.Join(dir, name)
}

// Copy copies programs to a directory, for a test that removes or replaces them, or that needs to know what is
// beside them. Another program does it: a process that has a program open for writing prevents its start.
func Copy(to string, names ...string) error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	args := []string{"-p", "-t", to}
	for _, name := range names {
		args = append(args, filepath.Join(dir, name))
	}
	if out, err := exec.Command("cp", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("copy programs: %w: %s", err, out)
	}
	return nil
}
