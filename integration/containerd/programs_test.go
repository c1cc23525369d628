package containerd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// programs builds allocnet's programs and the example once, and returns their directory.
var programs = sync.OnceValues(func() (dir string, err error) {
	if !privhost.Inside() {
		return "", errors.New("only inside a private host")
	}
	top, err := refplugins.Checkout()
	if err != nil {
		return "", err
	}
	if programsDir, err = os.MkdirTemp("", "allocnet-programs-"); err != nil {
		return "", err
	}
	for _, command := range [][]string{
		{"go", "build", "-o", programsDir, "./cmd/allocnetd", "./cmd/allocnet", "./cmd/allocnet-cni", "./cmd/allocnet-plugins"},
		{"make", "shim", "BIN=" + programsDir},
		{"env", "GOWORK=off", "go", "-C", "examples/containerd", "build", "-o", filepath.Join(programsDir, "example"), "."},
	} {
		c := exec.Command(command[0], command[1:]...)
		c.Dir, c.Env = top, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=")
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%q: %w: %s", command, err, out)
		}
	}
	return programsDir, nil
})

// programsDir is removed at the end of all tests.
var programsDir string

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, time.Minute, 5*time.Millisecond, what)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
