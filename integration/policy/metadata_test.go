package policy

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// agents are rules as those of Amazon ECS and of GKE, which redirect metadata addresses to a process of the
// host, or to another machine.
const agents = `
table ip agents {
	chain prerouting {
		type nat hook prerouting priority -100
		ip daddr 169.254.170.2 tcp dport 80 dnat to 127.0.0.1
		ip daddr 169.254.169.254 tcp dport 80 dnat to 192.0.2.2:80
		ip daddr 169.254.169.254 tcp dport 81 dnat to 192.0.2.2:80
	}
}
table ip6 agents {
	chain prerouting {
		type nat hook prerouting priority -100
		ip6 daddr fd00:ec2::254 tcp dport 80 dnat to [2001:db8::2]:80
	}
}`

// TestPolicyOfRedirectedMetadata: a rule that denies metadata holds for connections that another program
// redirects, also if a rule allows what they are redirected to, and the world has no metadata. Host ports of
// allocations with such a rule work.
func TestPolicyOfRedirectedMetadata(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, func(t *testing.T, main string) {
		h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
		testbed.SetSysctls(t, "", testbed.Quick)
		h.Network("net", policed(main, testbed.Dual)...)
		require.NoError(t, testbed.Command("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1"))
		defer func() { require.NoError(t, testbed.Command("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0")) }()
		testbed.Shell(t, "nft -f - <<'EOF'"+agents+"\nEOF")
		defer testbed.Shell(t, "nft delete table ip agents; nft delete table ip6 agents")
		testbed.Serve(t, "", "tcp", 80, "agent")
		testbed.ServeStreams(t, h.Outside.Path())
		ecs, gke, other, six := netip.MustParseAddrPort("169.254.170.2:80"), netip.MustParseAddrPort("169.254.169.254:80"),
			netip.MustParseAddrPort("169.254.169.254:81"), netip.MustParseAddrPort("[fd00:ec2::254]:80")
		all := []netip.AddrPort{ecs, gke, other, six}
		for name, one := range map[string]struct {
			policy string
			passes []netip.AddrPort
		}{
			"none":    {`{"egress":{"rules":[{"action":"deny","peers":[{"cidr":"198.51.100.0/24"}]}]}}`, all},
			"preset":  {`{"presets":["no-metadata"]}`, nil},
			"host":    {`{"presets":["no-metadata"],"egress":{"rules":[{"peers":[{"name":"host"},{"cidr":"192.0.2.2/32"},{"cidr":"2001:db8::2/128"}]}]}}`, nil},
			"world":   {`{"presets":["egress-only"],"ingress":{"rules":[{}]},"egress":{"rules":[{"peers":[{"name":"host"}],"services":[{"protocol":"tcp","ports":"53"}]}]}}`, nil},
			"address": {`{"egress":{"rules":[{"action":"deny","peers":[{"cidr":"169.254.169.254/32"}]}]}}`, []netip.AddrPort{ecs, six}},
			"port":    {`{"egress":{"rules":[{"action":"deny","peers":[{"name":"metadata"}],"services":[{"protocol":"tcp","ports":"80"}]}]}}`, []netip.AddrPort{other}},
		} {
			a, client := h.Alloc("a-"+name), h.Alloc("client-"+name)
			a.Ports = []portmap.Port{testbed.TCPPort(8080, 80)}
			h.SetUp(a)
			testbed.SetSysctls(t, a.Netns, testbed.Quick)
			testbed.Serve(t, a.Netns, "tcp", 80, "a")
			existing := map[netip.AddrPort]func(time.Duration) error{}
			for _, to := range all[1:] { // the host's end of one would go on to send
				existing[to] = h.EchoWithin(a.Netns, to.String())
			}
			a.Policy, client.Policy = mustPolicy(t, one.policy), mustPolicy(t, `{"presets":["no-metadata"]}`)
			h.change(a.ID, configurator.Change{Policy: a.Policy})
			h.SetUp(client)
			testbed.SetSysctls(t, client.Netns, testbed.Quick)
			ns, err := sandbox.Open(a.Netns)
			require.NoError(t, err)
			var waits sync.WaitGroup
			begins, goesOn := make([]error, len(all)), make([]bool, len(all))
			goesOn[0] = slices.Contains(one.passes, all[0])
			for i, to := range all {
				wait := testbed.Silence
				if slices.Contains(one.passes, to) {
					wait = testbed.Timeout
				}
				waits.Go(func() { begins[i] = ns.Do(func() error { return dial(to, wait) }) })
				if i > 0 {
					waits.Go(func() { goesOn[i] = existing[to](wait) == nil })
				}
			}
			waits.Wait()
			require.NoError(t, ns.Close())
			for i, to := range all {
				if slices.Contains(one.passes, to) {
					require.NoError(t, begins[i], "%s: %s", name, to)
				} else {
					require.ErrorAs(t, begins[i], new(*net.OpError), "%s: %s", name, to)
				}
				require.Equal(t, slices.Contains(one.passes, to), goesOn[i], "%s: existing connection to %s", name, to)
			}
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 8080), "a")
			testbed.RequireAnswer(t, client.Netns, "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
			h.TearDown(a, client)
		}
	})
}

// dial connects, and disconnects.
func dial(to netip.AddrPort, timeout time.Duration) error {
	c, err := net.DialTimeout("tcp", to.String(), timeout)
	if err == nil {
		err = c.Close()
	}
	return err
}
