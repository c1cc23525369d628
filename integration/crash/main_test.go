package crash

import (
	"fmt"
	"os"
	"testing"

	"github.com/allocnet/allocnet/integration/testhost"
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
	if pluginDir, err = testhost.ReferencePlugins("../.."); err != nil {
		fmt.Fprintln(os.Stderr, "build the reference plugins:", err)
		os.Exit(1)
	}
	code := privhost.Main(m)
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}
