package switches

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

const (
	redirects = "net/ipv4/conf/all/accept_redirects"
	routers   = "net/ipv6/conf/s0/accept_ra"
	one4      = "net/ipv4/conf/s0/forwarding"
	other4    = "net/ipv4/conf/s1/forwarding"
	localnet  = "net/ipv4/conf/s0/route_localnet"
)

// host makes a host with the links s0 and s1 that does not forward.
func host(t *testing.T) *Store {
	t.Helper()
	privhost.Require(t)
	for _, name := range []string{forward4, forward6} {
		require.NoError(t, rtnl.SetSysctl(name, "0"))
	}
	out, err := exec.Command("ip", "link", "add", "s0", "type", "veth", "peer", "name", "s1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		require.NoError(t, exec.Command("ip", "link", "del", "s0").Run())
		for _, name := range []string{forward4, forward6} {
			require.NoError(t, rtnl.SetSysctl(name, "0"))
		}
	})
	set(t, routers, "1")
	set(t, redirects, "1")
	return In(filepath.Join(t.TempDir(), "state"))
}

func set(t *testing.T, name, value string) {
	t.Helper()
	require.NoError(t, rtnl.SetSysctl(name, value))
}

func requireValues(t *testing.T, want map[string]string) {
	t.Helper()
	for name, value := range want {
		is, err := rtnl.Sysctl(name)
		require.NoError(t, err)
		require.Equal(t, value, is, name)
	}
}

func always() (bool, error) { return true, nil }

// TestSetBack: SetBack restores all values that Forward changed, also those that the kernel changes with them. Values that
// another program changed meanwhile stay.
func TestSetBack(t *testing.T) {
	for name, c := range map[string]struct {
		before, meanwhile, after map[string]string
	}{
		"nothing else": {nil, nil, map[string]string{forward4: "0", forward6: "0", routers: "1", redirects: "1", one4: "0", other4: "0"}},
		"redirects were off": {
			map[string]string{redirects: "0"}, nil,
			map[string]string{forward4: "0", redirects: "0"},
		},
		"a link forwarded": {
			map[string]string{one4: "1"}, nil,
			map[string]string{forward4: "0", one4: "1", other4: "0"},
		},
		"routers were always accepted": {
			map[string]string{routers: "2"}, nil, map[string]string{routers: "2"},
		},
		"another program": {
			nil, map[string]string{routers: "0", one4: "0", redirects: "1"},
			map[string]string{forward4: "0", forward6: "0", routers: "0", one4: "0", redirects: "1"},
		},
		"it switched forwarding off": {
			nil, map[string]string{forward4: "0"}, map[string]string{forward4: "0", one4: "0", redirects: "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := host(t)
			for name, value := range c.before {
				set(t, name, value)
			}
			require.False(t, s.Pending())
			require.NoError(t, s.Forward(true, true))
			require.NoError(t, s.Record(localnet, "1"))
			set(t, localnet, "1")
			require.True(t, s.Pending())
			requireValues(t, map[string]string{forward4: "1", forward6: "1", routers: "2", one4: "1", other4: "1"})
			for name, value := range c.meanwhile {
				set(t, name, value)
			}
			require.NoError(t, In(filepath.Dir(s.path)).SetBack(always), "another process")
			requireValues(t, c.after)
			requireValues(t, map[string]string{localnet: "0"})
			require.False(t, s.Pending())
			require.NoError(t, s.SetBack(always))
		})
	}
}

// TestForwardTwice: what is on already is not recorded, and what was recorded first counts.
func TestForwardTwice(t *testing.T) {
	s := host(t)
	require.NoError(t, s.Forward(false, false))
	require.False(t, s.Pending())
	require.NoError(t, s.Forward(true, false))
	requireValues(t, map[string]string{forward4: "1", forward6: "0", routers: "1"})
	require.NoError(t, s.Forward(true, true))
	set(t, forward4, "0")
	require.NoError(t, s.Forward(true, true))
	list, err := s.Changed()
	require.NoError(t, err)
	require.Contains(t, list, Switch{forward4, "0", "1"})
	require.Contains(t, list, Switch{routers, "1", "2"})
	require.NoError(t, s.SetBack(always))
	requireValues(t, map[string]string{forward4: "0", forward6: "0", routers: "1", one4: "0"})

	set(t, forward4, "1")
	require.NoError(t, s.Forward(true, false))
	require.False(t, s.Pending())
}

// TestForwardAtTheSameTime by several processes loses nothing.
func TestForwardAtTheSameTime(t *testing.T) {
	s := host(t)
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() { errs[i] = In(filepath.Dir(s.path)).Forward(true, true) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, s.SetBack(always))
	requireValues(t, map[string]string{forward4: "0", forward6: "0", routers: "1", redirects: "1", one4: "0"})
}

// TestNotIdle: nothing goes back while something needs it, and it is switched on again for what begins meanwhile.
func TestNotIdle(t *testing.T) {
	s := host(t)
	require.NoError(t, s.Forward(true, true))
	require.NoError(t, s.SetBack(func() (bool, error) { return false, nil }))
	requireValues(t, map[string]string{forward4: "1", forward6: "1", routers: "2"})
	trouble := errors.New("trouble")
	require.ErrorIs(t, s.SetBack(func() (bool, error) { return true, trouble }), trouble)
	requireValues(t, map[string]string{forward4: "1"})
	asked := 0
	require.NoError(t, s.SetBack(func() (bool, error) { asked++; return asked == 1, nil }))
	requireValues(t, map[string]string{forward4: "1", forward6: "1", routers: "2"})
	require.NoError(t, s.SetBack(always))
	requireValues(t, map[string]string{forward4: "0", forward6: "0", routers: "1"})
}

// TestRecordOfAGoneLink: what is gone does not keep the rest from going back.
func TestRecordOfAGoneLink(t *testing.T) {
	s := host(t)
	require.NoError(t, s.Forward(true, true))
	require.NoError(t, exec.Command("ip", "link", "set", "s0", "name", "s2").Run())
	defer func() { require.NoError(t, exec.Command("ip", "link", "set", "s2", "name", "s0").Run()) }()
	require.NoError(t, s.SetBack(always))
	requireValues(t, map[string]string{forward4: "0", forward6: "0"})
}

// TestBrokenRecord is reported, and nothing is changed.
func TestBrokenRecord(t *testing.T) {
	s := host(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(s.path), 0o700))
	require.NoError(t, os.WriteFile(s.path, []byte("["), 0o600))
	require.ErrorContains(t, s.Forward(true, true), s.path)
	require.ErrorContains(t, s.SetBack(always), s.path)
	requireValues(t, map[string]string{forward4: "0", forward6: "0", routers: "1"})
}

// TestLinksOfContainers are not made to go on with router advertisements.
func TestLinksOfContainers(t *testing.T) {
	s := host(t)
	out, err := exec.Command("ip", "link", "add", "vethabc", "type", "veth", "peer", "name", "inside").CombinedOutput()
	require.NoError(t, err, "%s", out)
	defer func() { require.NoError(t, exec.Command("ip", "link", "del", "vethabc").Run()) }()
	const container = "net/ipv6/conf/vethabc/accept_ra"
	set(t, container, "1")
	require.NoError(t, s.Forward(true, true))
	requireValues(t, map[string]string{routers: "2", container: "1"})
}

// TestWithoutRecord: forwarding keeps the routes of links also where nothing is recorded.
func TestWithoutRecord(t *testing.T) {
	host(t)
	var s *Store
	require.NoError(t, s.Forward(true, true))
	require.NoError(t, s.Record(localnet, "1"))
	requireValues(t, map[string]string{forward4: "1", forward6: "1", routers: "2"})
}
