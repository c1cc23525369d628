package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/sandbox"
)

// sendFrom sends UDP datagrams from an allocation. The policy drops them, which the sender is
// not told.
func sendFrom(t *testing.T, a *configurator.Allocation, to string, count int) {
	t.Helper()
	s, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		for range count {
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	}))
}

// addDefaultRoute gives the private host a default route to a gateway that does not answer.
func addDefaultRoute(t *testing.T) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "outside0"
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "outside1"}
	require.NoError(t, netlink.LinkAdd(link))
	t.Cleanup(func() { deleteLink(t, "outside0") })
	require.NoError(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, 1), Mask: net.CIDRMask(24, 32)}}))
	peer, err := netlink.LinkByName("outside1")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(peer))
	require.NoError(t, netlink.LinkSetUp(link))
	require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Gw: net.IPv4(198, 51, 100, 2)}))
}

// TestDenials: what a policy drops is counted, listed and published, with the rule, on routed
// and bridged networks.
func TestDenials(t *testing.T) {
	for name, plugin := range map[string]string{
		"ptp":    `{"type": "ptp", %s}`,
		"bridge": `{"type": "bridge", "bridge": "denied0", "isGateway": true, %s}`,
	} {
		t.Run(name, func(t *testing.T) {
			privhost.Require(t)
			w := newWorkspace(t)
			addDefaultRoute(t)
			ipam := fmt.Sprintf(`"ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.78.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}`, w.path("leases"))
			w.write("conf/net.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [%s,
				{"type": "policy", "capabilities": {"policy": true}, "policy": {"presets": ["no-metadata"]}}]}`, fmt.Sprintf(plugin, ipam)))
			w.configure()
			p := w.start()
			if name == "bridge" {
				defer deleteLink(t, "denied0")
			}
			testDenials(t, w)
			p.stop()
		})
	}
}

func testDenials(t *testing.T, w *workspace) {
	c := w.client()
	allocate := func(id, text string) (*configurator.Allocation, string) {
		path, err := c.CreateSandbox(background(), id)
		require.NoError(t, err)
		a := &configurator.Allocation{ID: id, Netns: path, Networks: []string{"net"}}
		a.Policy, err = policy.Parse([]byte(text))
		require.NoError(t, err)
		status, err := c.Setup(background(), *a)
		require.NoError(t, err)
		return a, status.Address
	}
	web, webAt := allocate("web", `{"egress":{"rules":[{"name":"no-dns","action":"deny","peers":[{"allocation":"db"}],"services":[{"protocol":"udp","ports":"53"}]}]}}`)
	db, dbAt := allocate("db", `{"ingress":{"default":"deny"}}`)
	got, err := c.Denials(background())
	require.NoError(t, err)
	require.Empty(t, got.Flows)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := make(chan client.Denied, 10)
	go func() {
		defer close(events)
		for e, err := range c.Events(ctx, 0) {
			if d, is := e.Data.(*client.Denied); is && err == nil {
				events <- *d
			}
		}
	}()
	require.Eventually(t, func() bool { // until the daemon follows
		sendFrom(t, db, "169.254.169.254:80", 1)
		return len(events) > 0
	}, 20*time.Second, 100*time.Millisecond)
	first := <-events
	require.Equal(t, "db egress preset no-metadata net", strings.Join([]string{first.Flows[0].ID, first.Flows[0].Direction, first.Flows[0].Rule, first.Flows[0].Network}, " "))

	sendFrom(t, web, net.JoinHostPort(dbAt, "53"), 3)
	sendFrom(t, web, net.JoinHostPort(dbAt, "54"), 2)
	want := []client.DeniedFlow{
		{ID: "web", Direction: "egress", Address: webAt, Peer: dbAt, PeerID: "db", Protocol: "udp", Port: 53, Rule: "no-dns", Packets: 3, Bytes: 3 * 29},
		{ID: "db", Direction: "ingress", Address: dbAt, Peer: webAt, PeerID: "web", Protocol: "udp", Port: 54, Rule: "default", Packets: 2, Bytes: 2 * 29},
	}
	var published []client.DeniedFlow
	for len(published) < 2 {
		select {
		case d := <-events:
			for _, f := range d.Flows {
				if f.PeerID != "" {
					published = append(published, f)
				}
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the flows are not published")
		}
	}
	require.ElementsMatch(t, want, published)
	got, err = c.Denials(background())
	require.NoError(t, err)
	require.Empty(t, got.Problems)
	for _, f := range want {
		require.Contains(t, got.Flows, f)
	}
	requireCounted(t, w)

	_, err = c.Update(background(), "db", configurator.Change{Policy: &policy.Policy{}})
	require.NoError(t, err)
	for _, a := range []*configurator.Allocation{web, db} {
		w.release(a.ID)
	}
	got, err = c.Denials(background())
	require.NoError(t, err)
	require.Empty(t, got.Flows, "they went with the allocations")
}

// requireCounted requires the dropped packets in the traffic and in the metrics.
func requireCounted(t *testing.T, w *workspace) {
	t.Helper()
	traffic, err := w.client().HostTraffic(background())
	require.NoError(t, err)
	require.Empty(t, traffic.Problems)
	denied := map[string][2]uint64{}
	for _, a := range traffic.Allocations {
		denied[a.ID] = [2]uint64{a.Interfaces[0].Sent.Denied, a.Interfaces[0].Received.Denied}
	}
	require.Equal(t, [2]uint64{3, 0}, denied["web"])
	require.Equal(t, uint64(2), denied["db"][1])
	require.Positive(t, denied["db"][0])
	require.Eventually(t, func() bool {
		out, err := exec.Command("curl", "-sS", "--unix-socket", w.path("s"), "http://localhost/metrics").Output()
		require.NoError(t, err)
		return strings.Contains(string(out), `allocnet_policy_denied_packets_total{direction="ingress",network="net"} 2`)
	}, 20*time.Second, 50*time.Millisecond)
}

// TestReloadPolicy: a reload reads the policy of the embedded network again, for allocations
// that are set up from then on.
func TestReloadPolicy(t *testing.T) {
	w := newWorkspace(t)
	addDefaultRoute(t)
	setting := fmt.Sprintf("policy = [%q]", w.path("policy.json"))
	w.write("policy.json", `{"presets":["no-metadata"]}`)
	w.configure(embedded, setting)
	p := w.start()
	w.allocate("before")
	w.write("policy.json", `{"egress":{"rules":[{"name":"no-sql","action":"deny","services":[{"protocol":"udp","ports":"5432"}]}]}}`)
	require.Equal(t, "ready", p.reload())
	w.allocate("after")
	for _, id := range []string{"before", "after"} {
		r, err := w.client().Get(background(), id)
		require.NoError(t, err)
		for _, to := range []string{"192.0.2.1:5432", "169.254.169.254:80"} {
			sendFrom(t, &configurator.Allocation{Netns: r.Netns}, to, 1)
		}
		require.NoError(t, w.client().CheckOnly(background(), configurator.Allocation{ID: id}), "the policy of the network has changed, not that of the allocation")
	}
	got, err := w.client().Denials(background())
	require.NoError(t, err)
	var flows []string
	for _, f := range got.Flows {
		flows = append(flows, fmt.Sprint(f.ID, " ", f.Rule, " ", f.Network, " ", f.Port))
	}
	require.ElementsMatch(t, []string{"before preset no-metadata allocnet 80", "after no-sql allocnet 5432"}, flows)

	w.write("policy.json", `{"egress":{"default":"denny"}}`)
	require.Equal(t, "ready; the last reload was refused, see the log", p.reload())
	p.logged("egress.default")
	for _, id := range []string{"before", "after"} {
		w.release(id)
	}
	p.stop()
}
