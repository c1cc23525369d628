package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// birdVariable makes the test binary do the work of a process on one of the hosts of
// TestBird: a birdRequest as JSON.
const birdVariable = "ALLOCNET_TEST_BIRD"

// birdRequest is what a process does: it collects all allocations, or tears one down, or sets
// one up. After a Setup it stays until it is killed.
type birdRequest struct {
	Conf, StateDir  string
	Setup, Teardown string // IDs
}

func onBirdHost() {
	if err := runOnBirdHost(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runOnBirdHost() error {
	var r birdRequest
	if err := json.Unmarshal([]byte(os.Getenv(birdVariable)), &r); err != nil {
		return err
	}
	c, err := configurator.New(configurator.Config{
		Network: "routed", ConfDir: r.Conf, StateDir: r.StateDir, PluginDirs: []string{"/none"}, Engine: configurator.EngineNative, Logger: logger(os.Stderr),
	})
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch {
	case r.Setup != "":
		var s *configurator.Status
		if s, err = c.Setup(ctx, configurator.Allocation{ID: r.Setup, OwnNetns: true}); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(s)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, os.Stdin) // until it is killed
		}
	case r.Teardown != "":
		err = c.Teardown(ctx, configurator.Allocation{ID: r.Teardown, OwnNetns: true})
	default:
		_, err = c.GCScope(ctx, configurator.Scope{DestroyNetns: true})
	}
	return errors.Join(err, c.Close())
}

// birdHost is a host with BIRD: a network namespace on the underlay.
type birdHost struct {
	t           *testing.T
	netns       *sandbox.Sandbox
	conf, state string
}

// newBirdHost returns the host with a number, 1 or 2. It has the files of the documentation,
// which are those of host 1, with changes to the network.
func newBirdHost(t *testing.T, number int, changes ...string) *birdHost {
	t.Helper()
	ns, err := sandbox.Create(fmt.Sprintf("bird%d", number))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ns.Destroy()) })
	h := &birdHost{t: t, netns: ns, conf: t.TempDir(), state: filepath.Join(t.TempDir(), "state")}
	of := func(text string) string {
		if number == 1 {
			return text
		}
		return strings.NewReplacer("192.0.2.1;", "192.0.2.2;", "192.0.2.2 as", "192.0.2.1 as", "2001:db8::2 as", "2001:db8::1 as",
			"10.80.1.", "10.80.2.", "fd80:0:0:1:", "fd80:0:0:2:").Replace(text)
	}
	changes = append(changes, "/run/cni/networks", h.state+"-leases")
	list := strings.NewReplacer(changes...).Replace(of(documented(t, "/etc/cni/net.d/40-routed.conflist")))
	require.NoError(t, os.WriteFile(filepath.Join(h.conf, "routed.conflist"), []byte(list), 0o600))
	bird := filepath.Join(h.conf, "bird.conf")
	// The default is five seconds.
	text := "log stderr all;\n" + strings.ReplaceAll(of(documented(t, "/etc/bird/bird.conf")), "local as 64512;", "local as 64512; connect delay time 1;")
	require.NoError(t, os.WriteFile(bird, []byte(text), 0o600))
	return h
}

// documented returns a file of the documentation.
func documented(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/cluster.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)<!-- file: " + regexp.QuoteMeta(path) + " -->\n```[a-z]*\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, block, path)
	return string(block[1])
}

// command returns a program on the host.
func (h *birdHost) command(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=" + h.netns.Path(), name}, args...)...)
}

func (h *birdHost) run(name, args string) string {
	h.t.Helper()
	out, err := h.command(name, strings.Fields(args)...).CombinedOutput()
	require.NoError(h.t, err, "%s %s: %s", name, args, out)
	return string(out)
}

// connect gives the host its addresses on the underlay, and starts BIRD.
func (h *birdHost) connect(number int) {
	h.t.Helper()
	h.run("ip", "link set lo up")
	h.run("ip", fmt.Sprintf("address add 192.0.2.%d/24 dev eth0", number))
	h.run("ip", fmt.Sprintf("address add 2001:db8::%d/64 dev eth0 nodad", number))
	h.run("ip", "link set eth0 up")
	cmd := h.command("bird", "-f", "-c", filepath.Join(h.conf, "bird.conf"), "-s", filepath.Join(h.conf, "bird.ctl"))
	cmd.Stdout, cmd.Stderr = testhost.Log{TB: h.t}, testhost.Log{TB: h.t}
	require.NoError(h.t, cmd.Start())
	h.t.Cleanup(func() {
		require.NoError(h.t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
}

// process starts a process that serves a request.
func (h *birdHost) process(r birdRequest) *exec.Cmd {
	h.t.Helper()
	r.Conf, r.StateDir = h.conf, h.state
	text, err := json.Marshal(r)
	require.NoError(h.t, err)
	self, err := os.Executable()
	require.NoError(h.t, err)
	cmd := h.command(self)
	cmd.Env = append(os.Environ(), birdVariable+"="+string(text))
	cmd.Stderr = testhost.Log{TB: h.t}
	return cmd
}

// setup sets up an allocation. The process stays until kill is called.
func (h *birdHost) setup(id string) (a *birdAllocation, kill func()) {
	h.t.Helper()
	cmd := h.process(birdRequest{Setup: id})
	out, err := cmd.StdoutPipe()
	require.NoError(h.t, err)
	_, err = cmd.StdinPipe()
	require.NoError(h.t, err)
	require.NoError(h.t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill() // the test may have killed it
		_ = cmd.Wait()
	}
	h.t.Cleanup(kill)
	a = &birdAllocation{}
	require.NoError(h.t, json.NewDecoder(out).Decode(&a.Status))
	ns, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, id))
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, ns.Close()) })
	a.netns = ns
	return a, kill
}

type birdAllocation struct {
	configurator.Status
	netns *sandbox.Sandbox
}

// requireReach connects to an allocation from another one, which must see the other's
// address.
func (a *birdAllocation) requireReach(t *testing.T, to *birdAllocation, toAddress, fromAddress string) {
	t.Helper()
	var l net.Listener
	require.NoError(t, to.netns.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(toAddress, "0"))
		return err
	}))
	defer l.Close()
	require.NoError(t, a.netns.Do(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}))
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, netip.MustParseAddr(fromAddress), c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
}

// await waits until the host knows, through BIRD, exactly these destinations, each over a
// next hop on the underlay.
func (h *birdHost) await(destinations ...string) {
	h.t.Helper()
	var got []string
	require.Eventually(h.t, func() bool {
		got = nil
		err := h.netns.Do(func() error {
			underlay, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				routes, err := retry.List(func() ([]netlink.Route, error) {
					return netlink.RouteListFiltered(family, &netlink.Route{Protocol: unix.RTPROT_BIRD, LinkIndex: underlay.Attrs().Index}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_OIF)
				})
				if err != nil {
					return err
				}
				for _, r := range routes {
					got = append(got, r.Dst.String())
				}
			}
			return nil
		})
		return err == nil && slices.Equal(got, destinations)
	}, 30*time.Second, 20*time.Millisecond, "want %s", destinations)
}

// TestBird: with the documented configuration of BIRD, hosts learn the addresses of each
// other's allocations by BGP, and forget them when these are torn down, also after the death of
// the process that has set them up.
func TestBird(t *testing.T) {
	privhost.Require(t, "bird", "nsenter", "ip")
	hosts := [2][]string{{"10.80.1.2/32", "fd80:0:0:1::2/128"}, {"10.80.2.2/32", "fd80:0:0:2::2/128"}}
	subnets := [2][]string{{"10.80.1.0/24", "fd80:0:0:1::/64"}, {"10.80.2.0/24", "fd80:0:0:2::/64"}}
	bridge := []string{`"ptp"`, `"bridge", "bridge": "bird0", "isGateway": true`}
	of := func(table string) []string { return []string{`"table": 100`, table} }
	for name, c := range map[string]struct {
		changes   []string
		announced [2][]string
		full      bool // the others have its plugin, and its destinations
	}{
		"ptp":             {nil, hosts, false},
		"ptp, subnets":    {of(`"table": 100, "subnets": true`), subnets, true},
		"bridge":          {bridge, hosts, true},
		"bridge, subnets": {slices.Concat(bridge, of(`"table": 100, "protocol": 91, "subnets": true`)), subnets, false},
	} {
		t.Run(name, func(t *testing.T) {
			if c.full {
				skip.InShort(t)
			}
			withBird(t, c.changes, c.announced)
		})
	}
}

// withBird sets up and removes an allocation on each of two hosts, with changes to the
// documented network. announced are the destinations that each host announces.
func withBird(t *testing.T, changes []string, announced [2][]string) {
	one, two := newBirdHost(t, 1, changes...), newBirdHost(t, 2, changes...)
	require.NoError(t, testbed.Command("ip", "link", "add", "eth0", "netns", one.netns.Name(), "type", "veth", "peer", "name", "eth0", "netns", two.netns.Name()))
	one.connect(1)
	two.connect(2)
	a, _ := one.setup("bird-a")
	b, kill := two.setup("bird-b")
	require.Equal(t, []string{"10.80.1.2", "fd80:0:0:1::2", "10.80.2.2", "fd80:0:0:2::2"}, []string{a.Address, a.AddressIPv6, b.Address, b.AddressIPv6})
	two.await(announced[0]...)
	one.await(announced[1]...)
	a.requireReach(t, b, b.Address, a.Address)
	b.requireReach(t, a, a.AddressIPv6, b.AddressIPv6)

	require.NoError(t, one.process(birdRequest{Teardown: "bird-a"}).Run())
	two.await()
	kill()
	one.await(announced[1]...) // the allocation is still there
	require.NoError(t, two.process(birdRequest{}).Run())
	one.await()
	for _, h := range []*birdHost{one, two} {
		require.Empty(t, h.run("ip", "-4 route show table all proto 91")+h.run("ip", "-6 route show table all proto 91"))
	}
}

// logger returns a logger that writes to w.
func logger(w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: w, Level: hclog.Info})
}
