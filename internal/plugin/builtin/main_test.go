package builtin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/allocnet/allocnet/internal/privhost"
)

// pluginDir holds the reference plugins.
var pluginDir string

func TestMain(m *testing.M) {
	var err error
	if pluginDir, err = filepath.Abs("../../../bin/cni"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(privhost.Main(m, "/var/lib/cni"))
}
