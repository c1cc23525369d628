package daemon

import (
	"os"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

func TestMain(m *testing.M) {
	code := testbed.Main(m, nil)
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}
