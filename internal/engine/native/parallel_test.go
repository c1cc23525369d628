package native_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestParallel sets up, checks and tears down many allocations concurrently.
// All are on one bridge and publish ports. No two get the same address, and
// nothing is left.
func TestParallel(t *testing.T) {
	privhost.Require(t)
	crowd := 200
	if testing.Short() {
		crowd = 80
	}
	state := filepath.Join(t.TempDir(), "state")
	shared := func(line string) bool {
		return strings.HasPrefix(line, "file "+state+"/") && !strings.Contains(line, "/allocs/")
	}
	options := hostsnap.Options{Dirs: []string{state}, Persistent: true, Ignore: shared}
	before, err := hostsnap.Take(options)
	require.NoError(t, err)

	c, err := configurator.New(configurator.Config{
		Network: conflist.EmbeddedName, ConfDir: state + "/none", StateDir: state, Engine: configurator.EngineNative,
		PluginDirs: []string{"/nonexistent"}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("fd00:9::/64")},
		Timeout: 5 * time.Minute, // all at once, with the race detector, beside other tests
	})
	require.NoError(t, err)
	allocs := make([]configurator.Allocation, crowd)
	for i := range allocs {
		s, err := sandbox.Create(fmt.Sprintf("crowd-%d", i))
		require.NoError(t, err)
		defer s.Destroy()
		allocs[i] = configurator.Allocation{ID: s.Name(), Netns: s.Path(), Ports: []portmap.Port{{Value: 20000 + i, To: 80}}}
	}
	var mu sync.Mutex
	owners := map[string]string{}
	atOnce(t, allocs, "set up", func(a configurator.Allocation) error {
		status, err := c.Setup(t.Context(), a)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, address := range []string{status.Address, status.AddressIPv6} {
			if other, taken := owners[address]; taken {
				return fmt.Errorf("address %s is that of %s, too", address, other)
			}
			owners[address] = a.ID
		}
		return nil
	})
	require.Len(t, owners, 2*crowd)
	atOnce(t, allocs, "check", func(a configurator.Allocation) error { return c.Check(t.Context(), a) })
	// Some are torn down and set up again while others are checked.
	atOnce(t, allocs, "mix", func(a configurator.Allocation) error {
		if a.Ports[0].Value%2 == 0 {
			return c.Check(t.Context(), a)
		}
		err := c.Teardown(t.Context(), a)
		_, setupErr := c.Setup(t.Context(), a)
		return errors.Join(err, setupErr)
	})
	atOnce(t, allocs, "tear down", func(a configurator.Allocation) error { return c.Teardown(t.Context(), a) })
	require.NoError(t, c.Close()) // waits for the removals

	for _, a := range allocs {
		require.NoError(t, sandbox.Destroy(a.Netns))
	}
	after, err := hostsnap.Take(options)
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
}

// atOnce calls act for all allocations concurrently.
func atOnce(t *testing.T, allocs []configurator.Allocation, what string, act func(configurator.Allocation) error) {
	t.Helper()
	errs := make([]error, len(allocs))
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, a := range allocs {
		wg.Go(func() {
			<-start
			if err := act(a); err != nil {
				errs[i] = fmt.Errorf("%s %s: %w", what, a.ID, err)
			}
		})
	}
	close(start)
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}
