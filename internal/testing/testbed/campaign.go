package testbed

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// CampaignSize returns the number of random attempts: small for make test FULL=1, half
// of it for make test, full for make stress.
func CampaignSize(small, full int) int {
	switch {
	case os.Getenv("ALLOCNET_STRESS") != "":
		return full
	case testing.Short():
		return (small + 1) / 2
	}
	return small
}

// CampaignSeed returns the seed of a campaign's random choices: SEED, or the
// current time. The test logs it.
func CampaignSeed(t testing.TB) uint64 {
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
