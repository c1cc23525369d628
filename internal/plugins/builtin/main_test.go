package builtin_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/internal/testing/shard"
)

// pluginDir holds the reference plugins.
var pluginDir string

func TestMain(m *testing.M) {
	var err error
	if pluginDir, err = refplugins.Dir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(shard.Main(m, 3, func() int { return privhost.Main(m, "/var/lib/cni") }))
}
