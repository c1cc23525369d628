package nomad_test

import (
	"os"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }
