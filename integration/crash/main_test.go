package crash

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/allocnet/allocnet/internal/fakeplugin"
	"github.com/allocnet/allocnet/internal/faultinject"
	"github.com/allocnet/allocnet/internal/privhost"
)

// pluginDir holds the reference plugins.
var pluginDir string

func TestMain(m *testing.M) {
	faultinject.Main()
	fakeplugin.Main()
	if os.Getenv(requestVariable) != "" {
		operate()
	}
	var err error
	if pluginDir, err = buildPlugins(); err != nil {
		fmt.Fprintln(os.Stderr, "build the reference plugins:", err)
		os.Exit(1)
	}
	code := privhost.Main(m)
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// buildPlugins builds the reference plugins where the tests were not started by
// make.
func buildPlugins() (string, error) {
	top, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(top, "bin", "cni")
	if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
		return dir, nil
	}
	c := exec.Command("make", "--no-print-directory", "-C", top, "plugins")
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	return dir, c.Run()
}
