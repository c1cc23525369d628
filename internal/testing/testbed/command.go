package testbed

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Command runs a program. The error contains its output.
func Command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return nil
}

// Output runs a program and returns its output.
func Output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	return string(out), err
}

// Shell runs a command line of sh, which must succeed.
func Shell(t testing.TB, text string) {
	t.Helper()
	require.NoError(t, Command("sh", "-c", text))
}
