package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// pluginDir holds the reference plugins.
var pluginDir string

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); builtin.Plugins[name] != nil {
		os.Exit(sdk.Main(name, builtin.Plugins, builtin.Versions))
	}
	fakeplugin.Main()
	if os.Getenv(loopVariable) != "" {
		loop()
	}
	if os.Getenv(bootVariable) != "" {
		inBoot()
	}
	if os.Getenv(birdVariable) != "" {
		onBirdHost()
	}
	var err error
	if pluginDir, err = refplugins.Dir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := privhost.Main(m)
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}
