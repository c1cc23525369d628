package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/allocnet/allocnet/internal/fakeplugin"
	"github.com/allocnet/allocnet/internal/plugin"
	"github.com/allocnet/allocnet/internal/plugin/builtin"
	"github.com/allocnet/allocnet/internal/privhost"
)

// pluginDir holds the reference plugins.
var pluginDir string

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); builtin.Plugins[name] != nil {
		os.Exit(plugin.Main(name, builtin.Plugins))
	}
	fakeplugin.Main()
	if os.Getenv(loopVariable) != "" {
		loop()
	}
	var err error
	if pluginDir, err = buildPlugins(); err != nil {
		fmt.Fprintln(os.Stderr, "build the reference plugins:", err)
		os.Exit(1)
	}
	code := privhost.Main(m)
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}

// buildPlugins sees to it that the reference plugins are there, also where the
// tests were not started by make.
func buildPlugins() (string, error) {
	top, err := filepath.Abs("..")
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
