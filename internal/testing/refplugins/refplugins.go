// Package refplugins finds the binaries of the reference CNI plugins for tests.
package refplugins

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Dir returns the directory of the reference plugins: the first one in
// $CNI_PATH that contains them, else bin/cni of the checkout. If that is
// missing or incomplete, make builds it.
var Dir = sync.OnceValues(func() (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		if contains(dir) {
			return filepath.Abs(dir)
		}
	}
	top, err := Checkout()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(top, "bin", "cni")
	if contains(dir) {
		return dir, nil
	}
	out, err := exec.Command("make", "--no-print-directory", "-C", top, "plugins").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the reference plugins: %w: %s", err, out)
	}
	return dir, nil
})

// contains reports whether a directory has the plugins of both modules that make builds.
func contains(dir string) bool {
	for _, name := range []string{"bridge", "flannel"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// Checkout returns the top directory of the checkout that the working directory is in.
func Checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.work above the working directory")
		}
	}
}

// Path returns the path of one reference plugin.
func Path(t testing.TB, name string) string {
	t.Helper()
	dir, err := Dir()
	require.NoError(t, err)
	return filepath.Join(dir, name)
}
