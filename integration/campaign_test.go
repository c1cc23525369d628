package integration

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// campaignSize is how often something random is tried: often enough for make test,
// or as often as make stress does it.
func campaignSize(small, full int) int {
	if os.Getenv("ALLOCNET_STRESS") != "" {
		return full
	}
	return small
}

// campaignSeed is what a campaign's random choices begin with: SEED, or one that the
// test logs.
func campaignSeed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SEED=%d", seed)
	return seed
}
