package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// crowd is a number of containers, of which several are processed concurrently.
// Each call is a process, as with runtimes.
type crowd struct {
	d      *daemonProcess
	names  []string
	netns  []string
	atOnce int
}

func (d *daemonProcess) crowd(prefix string, containers, atOnce int) *crowd {
	d.h.T.Helper()
	c := &crowd{d: d, names: testbed.IDs(prefix, containers), netns: make([]string, containers), atOnce: atOnce}
	require.Empty(d.h.T, c.each(func(i int) error {
		s, err := sandbox.Create(c.names[i])
		if err == nil {
			c.netns[i] = s.Path()
			err = s.Close()
		}
		return err
	}))
	d.h.T.Cleanup(func() {
		require.Empty(d.h.T, c.each(func(i int) error { return sandbox.Destroy(c.netns[i]) }))
	})
	return c
}

// each calls do for every container and returns all errors.
func (c *crowd) each(do func(i int) error) (errs []error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	for first := range c.atOnce {
		running.Go(func() {
			for i := first; i < len(c.names); i += c.atOnce {
				if err := do(i); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	return errs
}

const crowdPort = 20000

// add attaches all containers, every fifth with a host port, and returns their
// addresses.
func (c *crowd) add() []netip.Addr {
	c.d.h.T.Helper()
	addresses := make([]netip.Addr, len(c.names))
	plain := c.d.pluginConfig(nil)
	require.Empty(c.d.h.T, c.each(func(i int) error {
		config := plain
		if i%5 == 0 {
			config = c.d.pluginConfig(map[string]any{"runtimeConfig": map[string]any{
				"portMappings": []portmap.Mapping{{HostPort: crowdPort + i, ContainerPort: 80, Protocol: "tcp"}},
			}})
		}
		out, err := c.d.plugin("ADD", c.names[i], c.netns[i], config)
		if err != nil {
			return err
		}
		var result types100.Result
		if err := json.Unmarshal(out, &result); err != nil {
			return fmt.Errorf("result %q: %w", out, err)
		}
		for _, ip := range result.IPs {
			if a, ok := netip.AddrFromSlice(ip.Address.IP.To4()); ok && !a.IsLoopback() {
				addresses[i] = a
			}
		}
		return nil
	}))
	return addresses
}

func (c *crowd) del() {
	c.d.h.T.Helper()
	config := c.d.pluginConfig(nil)
	require.Empty(c.d.h.T, c.each(func(i int) error {
		_, err := c.d.plugin("DEL", c.names[i], c.netns[i], config)
		return err
	}))
}

// TestDaemonCrowd adds and removes 500 containers (50 with -short), 50 (40) at a
// time. Every call succeeds at the first attempt, and the daemon's resources do
// not grow with the number of containers.
func TestDaemonCrowd(t *testing.T) {
	const (
		// The number of concurrent operations in the default settings, and the
		// memory that each may add: the longest request, encoded and decoded.
		operations, each = 32, 2 << 10 // kB
	)
	containers, atOnce := 500, 50
	if testing.Short() {
		containers, atOnce = 50, 40 // still more than operations
	}
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Families{V4: "10.99.0.0/16", V6: "fd00:99::/64"}, "")...)
	d := h.startDaemon(`log { level = "warn" }`)
	first := d.crowd("first", atOnce, atOnce) // opens what the daemon keeps open
	first.add()
	first.del()
	memory, descriptors, threads := d.procStatus("VmHWM"), d.descriptors(), d.procStatus("Threads")

	began := time.Now()
	c := d.crowd("c", containers, atOnce)
	created := time.Now()
	addresses := c.add()
	added := time.Now()
	seen := map[netip.Addr]bool{}
	for i, a := range addresses {
		require.True(t, a.IsValid() && !seen[a], "address %q of %s", a, c.names[i])
		seen[a] = true
	}
	require.Eventually(t, func() bool { // the first ones are removed behind their DEL
		records, err := d.client().List(t.Context())
		require.NoError(t, err)
		return len(records) == containers
	}, time.Minute, 10*time.Millisecond)
	for i := 0; i < containers; i += containers / 10 { // each of these has a host port
		testbed.Serve(t, c.netns[i], "tcp", 80, c.names[i])
		testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, crowdPort+i), c.names[i])
		testbed.RequireAnswer(t, "", "tcp", netip.AddrPortFrom(addresses[i], 80).String(), c.names[i])
	}
	reached := time.Now()
	c.del()
	t.Logf("%d namespaces in %s, ADDs in %s, DELs in %s", containers, created.Sub(began), added.Sub(created), time.Since(reached))

	peak := d.procStatus("VmHWM")
	t.Logf("memory: %d kB after %d containers, at most %d kB with %d", memory, atOnce, peak, containers)
	require.LessOrEqual(t, peak, memory+operations*each)
	// Some sockets are kept for concurrent operations.
	const kept = 8
	require.Eventually(t, func() bool { return d.descriptors() <= descriptors+kept }, 10*time.Second, 10*time.Millisecond,
		"descriptors: %d before, %d now", descriptors, d.descriptors())
	// The runtime keeps threads that were blocked at the same time: at most one
	// for each operation.
	require.LessOrEqual(t, d.procStatus("Threads"), threads+operations)
	require.NotContains(t, strings.ToLower(d.log()), "forc")
	d.h.Settle()
	records, err := d.client().List(t.Context())
	require.NoError(t, err)
	require.Empty(t, records)
}

// descriptors returns the number of descriptors that the daemon has open.
func (d *daemonProcess) descriptors() int {
	d.h.T.Helper()
	return testbed.Entries(d.h.T, fmt.Sprintf("/proc/%d/fd", d.pid()))
}
