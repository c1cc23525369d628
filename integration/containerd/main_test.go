package containerd

import (
	"os"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/pidns"
)

func TestMain(m *testing.M) {
	code := pidns.Main(m, "/etc/cni/net.d")
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}
