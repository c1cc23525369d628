package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/allocnet/allocnet/integration/testhost"
	"github.com/allocnet/allocnet/internal/fakeplugin"
	"github.com/allocnet/allocnet/internal/plugin"
	"github.com/allocnet/allocnet/internal/plugin/builtin"
	"github.com/allocnet/allocnet/internal/privhost"
)

// pluginDir holds the reference plugins.
var pluginDir string

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); builtin.Plugins[name] != nil {
		os.Exit(plugin.Main(name, builtin.Plugins, builtin.Versions))
	}
	fakeplugin.Main()
	if os.Getenv(loopVariable) != "" {
		loop()
	}
	var err error
	if pluginDir, err = testhost.ReferencePlugins(".."); err != nil {
		fmt.Fprintln(os.Stderr, "build the reference plugins:", err)
		os.Exit(1)
	}
	code := privhost.Main(m)
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}
