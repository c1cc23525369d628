package hosts

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// load asks a server all the time, and counts the answers.
type load struct {
	answers, failures atomic.Int64
	stop              chan struct{}
	ended             chan struct{}
}

// ask keeps a allocation asking another one until the test ends.
func (c *cluster) load(from, to *allocation) *load {
	l := &load{stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			if _, err := from.host.ask(from, "tcp", net.JoinHostPort(to.Address, "80")); err != nil {
				l.failures.Add(1)
			} else {
				l.answers.Add(1)
			}
		}
	}()
	c.t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	<-l.ended
}

// requireAnswers requires that some more questions are answered, and that none fails.
func (l *load) requireAnswers(t testing.TB, what string) {
	t.Helper()
	answered := l.answers.Load()
	eventually(t, what+": questions are answered", func() bool { return l.answers.Load() > answered+5 })
	require.Zero(t, l.failures.Load(), what)
}

// requireReach requires that an allocation reaches another one soon.
func requireReach(t testing.TB, from, to *allocation) {
	t.Helper()
	var err error
	eventually(t, fmt.Sprintf("%s reaches %s", from.id, to.id), func() bool {
		_, err = from.host.ask(from, "tcp", net.JoinHostPort(to.Address, "80"))
		return err == nil
	})
}

// TestNodesCrash kills each kind of program on one host, while allocations of different hosts
// talk to each other.
func TestNodesCrash(t *testing.T) {
	c := newCluster(t, overlay{backend: "vxlan"})
	c.start(embedded, "")
	one, two, three := c.hosts[0], c.hosts[1], c.hosts[2]
	a, b := one.setup("a"), two.setup("b", "-p", "8080:80")
	l := c.load(a, b)

	c.etcd.Kill()
	l.requireAnswers(t, "without etcd")
	d := three.setup("d") // the subnet is known
	requireReach(t, d, b)
	c.startEtcd()

	two.flanneld.Kill()
	l.requireAnswers(t, "without flanneld")
	e := two.setup("e")
	requireReach(t, a, e)
	before := two.env()
	two.flanneld.Start()
	two.awaitSubnet()
	l.requireAnswers(t, "after flanneld has started again")
	require.Equal(t, before, two.env(), "it has the same subnet")

	two.daemon.Kill()
	l.requireAnswers(t, "without allocnetd")
	two.daemon.Start()
	two.awaitDaemon()
	l.requireAnswers(t, "after allocnetd has started again")
	two.run(two.bin+"/allocnet", "check", "b")

	l.end()
	for _, h := range c.hosts {
		h.requireClean()
	}
}

// TestEtcdAway: while etcd is away for a minute, allocations of different hosts reach each other,
// also those that are set up meanwhile.
func TestEtcdAway(t *testing.T) {
	if short() {
		skip.LeaveTo(t, "make hosts")
	}
	c := newCluster(t, overlay{backend: "vxlan"})
	c.start(embedded, "")
	one, two, three := c.hosts[0], c.hosts[1], c.hosts[2]
	a, b := one.setup("a"), two.setup("b")
	l := c.load(a, b)
	before := two.env()
	c.etcd.Kill()
	for began := time.Now(); time.Since(began) < time.Minute; {
		requireReach(t, three.create("d"), b)
		three.run(three.bin+"/allocnet", "teardown", "d", "--destroy")
		require.False(t, two.flanneld.HasEnded(), two.flanneld.Output())
	}
	l.requireAnswers(t, "without etcd")
	c.startEtcd()
	require.Equal(t, before, two.env())

	// flanneld follows etcd again: the others learn of a host's new subnet.
	three.flanneld.Kill()
	c.expire(three)
	three.startFlanneld()
	d := three.setup("e")
	requireReach(t, a, d)
	l.requireAnswers(t, "with etcd again")
	l.end()
	for _, h := range c.hosts {
		h.requireClean()
	}
}

// TestNodesPartition cuts a host off and connects it again; then it flushes the rules of one.
func TestNodesPartition(t *testing.T) {
	c := newCluster(t, overlay{backend: "vxlan"})
	c.start(embedded, "")
	one, two := c.hosts[0], c.hosts[1]
	a, b := one.setup("a"), two.setup("b", "-p", "8080:80")
	requireReach(t, a, b)
	link, err := netlink.LinkByName(two.name)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetDown(link))
	_, err = one.ask(a, "tcp", net.JoinHostPort(b.Address, "80"))
	require.Error(t, err)
	local := two.setup("local") // a host that is cut off goes on
	requireReach(t, local, b)
	require.NoError(t, netlink.LinkSetUp(link))
	requireReach(t, a, b)

	two.run("nft", "flush", "ruleset")
	eventually(t, "the host port is published again", func() bool {
		_, err := one.ask(nil, "tcp", net.JoinHostPort(two.address4.String(), "8080"))
		return err == nil
	})
	requireReach(t, a, b)
	for _, h := range c.hosts {
		h.requireClean()
	}
}

// TestNodeReturnsWithAnotherSubnet: new allocations have addresses of the new subnet, those of
// the old one stay until they are torn down, and are reported.
func TestNodeReturnsWithAnotherSubnet(t *testing.T) {
	c := newCluster(t, overlay{backend: "vxlan"})
	c.start(embedded, "")
	one, two := c.hosts[0], c.hosts[1]
	a, old := one.setup("a"), two.setup("old")
	requireReach(t, a, old)
	before := two.env()["FLANNEL_SUBNET"]
	two.flanneld.Kill()
	c.expire(two)
	c.take(before)
	two.startFlanneld()
	require.NotEqual(t, before, two.env()["FLANNEL_SUBNET"])

	fresh := two.setup("fresh")
	require.True(t, strings.HasPrefix(fresh.Address, subnetPrefix(two.env()["FLANNEL_SUBNET"])), fresh.Address)
	requireReach(t, a, fresh)
	out, _ := two.try(two.bin+"/allocnet", "doctor")
	require.Contains(t, out, "address-outside-subnet: allocation \"old\" has address "+old.Address)
	two.teardown("old")
	out, _ = two.try(two.bin+"/allocnet", "doctor")
	require.NotContains(t, out, "address-outside-subnet")
	for _, h := range c.hosts {
		h.requireClean()
	}
}

// TestRoutedCluster: the embedded network with subnets of its own, over routes between the
// hosts. With the networks of all hosts in the settings, allocations see each other's
// addresses; without them, they see the host's. The setting can be removed again.
func TestRoutedCluster(t *testing.T) {
	c := newCluster(t, overlay{backend: "host-gw"}) // flanneld adds the routes
	for i, cluster := range []string{"", cluster4.String(), ""} {
		t.Run(cmp.Or(cluster, "none"), func(t *testing.T) {
			for _, h := range c.hosts[:2] {
				subnet := netip.MustParsePrefix(h.env()["FLANNEL_SUBNET"]).Masked()
				settings := fmt.Sprintf("networks = [\"allocnet\"]\nsubnets = [%q]\nroutes {\n  table = 100\n", subnet)
				if cluster != "" {
					settings += fmt.Sprintf("  cluster = [%q]\n", cluster)
				}
				h.prepare(settings+"}\n", "")
				h.daemon.Start()
				h.awaitDaemon()
			}
			one, two := c.hosts[0], c.hosts[1]
			a, b := one.setup(fmt.Sprint("a", i)), two.setup(fmt.Sprint("b", i))
			require.Contains(t, one.run("ip", "route", "show", "table", "100"), a.Address+" dev veth")
			requireReach(t, a, b)
			want := a.Address
			if cluster == "" {
				want = one.address4.String()
			}
			for _, protocol := range []string{"tcp", "udp"} {
				source, err := one.ask(a, protocol, net.JoinHostPort(b.Address, "80"))
				require.NoError(t, err)
				require.Equal(t, want, source)
			}
			for _, h := range c.hosts[:2] {
				h.requireClean()
				h.daemon.Terminate()
				h.daemon.Wait()
			}
		})
	}
}

// TestSubnetComes: a host on which flanneld has not started yet is not ready, and says why; then it
// becomes ready by itself.
func TestSubnetComes(t *testing.T) {
	c := newCluster(t, overlay{backend: "vxlan"})
	for i, network := range []struct{ settings, list string }{{embedded, ""}, {ofFiles, flannelList}} {
		h := c.hosts[i]
		h.flanneld.Kill()
		h.run("rm", "/run/flannel/subnet.env")
		h.prepare(network.settings, network.list)
		h.daemon.Start()
		eventually(t, "allocnetd answers", func() bool { _, err := h.try(h.bin+"/allocnet", "ls"); return err == nil })
		for _, command := range [][]string{{"ready"}, {"setup", "early", "--create"}} {
			out, err := h.try(append([]string{h.bin + "/allocnet"}, append(command, "--json")...)...)
			require.Error(t, err)
			require.Contains(t, out, "/run/flannel/subnet.env")
			require.Contains(t, out, `"code":50`)
		}
		h.startFlanneld()
		h.awaitDaemon()
		h.setup("early")
		h.requireClean()
	}
}

// subnetPrefix returns the first three numbers of a subnet of 24 bits.
func subnetPrefix(subnet string) string { return subnet[:strings.LastIndex(subnet, ".")+1] }

// take leases a subnet for a host that does not exist.
func (c *cluster) take(subnet string) {
	c.t.Helper()
	key := strings.Replace(strings.Replace(subnet, ".1/", ".0/", 1), "/", "-", 1)
	c.put("/coreos.com/network/subnets/"+key, `{"PublicIP":"10.210.0.99","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}}`)
}

// TestNodeReturnsWithAnotherSubnetAndBridge: the bridge keeps the gateway of the old subnet.
// Until the old allocations are torn down and the bridge is deleted, new ones are refused with
// an error that names it; then they have addresses of the new subnet.
func TestNodeReturnsWithAnotherSubnetAndBridge(t *testing.T) {
	c := newCluster(t, overlay{backend: "vxlan"})
	c.start(ofFiles, flannelList)
	one, two := c.hosts[0], c.hosts[1]
	a, old, neighbour := one.setup("a"), two.setup("old"), two.setup("neighbour")
	requireReach(t, a, old)
	before := two.env()["FLANNEL_SUBNET"]
	two.flanneld.Kill()
	c.expire(two)
	c.take(before)
	two.startFlanneld()
	require.NotEqual(t, before, two.env()["FLANNEL_SUBNET"])

	refused := func() {
		t.Helper()
		out, err := two.try(two.bin+"/allocnet", "setup", "fresh", "--create")
		require.Error(t, err)
		require.Contains(t, out, "already has the address "+before)
		out, _ = two.try(two.bin+"/allocnet", "doctor")
		require.Contains(t, out, "bridge-subnet")
		require.Contains(t, out, "ip link del cni0")
	}
	refused()
	requireReach(t, neighbour, old) // those of the old subnet go on among themselves
	out, _ := two.try(two.bin+"/allocnet", "doctor")
	for _, x := range []*allocation{old, neighbour} {
		require.Contains(t, out, `address-outside-subnet: allocation "`+x.id+`" has address `+x.Address)
		two.teardown(x.id)
	}
	refused()
	two.run("ip", "link", "del", "cni0")
	fresh := two.setup("fresh")
	require.True(t, strings.HasPrefix(fresh.Address, subnetPrefix(two.env()["FLANNEL_SUBNET"])), fresh.Address)
	requireReach(t, a, fresh)
	out, _ = two.try(two.bin+"/allocnet", "doctor")
	require.NotContains(t, out, "bridge-subnet")
	require.NotContains(t, out, "address-outside-subnet")
	for _, h := range c.hosts {
		h.requireClean()
	}
}
