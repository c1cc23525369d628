package integration

import (
	"os"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

func TestMain(m *testing.M) {
	os.Exit(testbed.Main(m, testbed.Roles{testbed.LoopVariable: loop, bootVariable: inBoot, birdVariable: onBirdHost}))
}
