package hosts

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// embedded makes the embedded network span the hosts.
const embedded = `
networks = ["allocnet"]
subnets_from = "/run/flannel/subnet.env"
`

// ofFiles is the setting for networks of files.
const ofFiles = `
conf_dir = "/run/net.d"
`

// flannelList is a network as Kubernetes' flannel has it.
const flannelList = `{"name": "cbr0", "cniVersion": "1.0.0", "plugins": [
  {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
  {"type": "firewall"},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// start starts allocnetd on all hosts.
func (c *cluster) start(settings, list string) {
	c.t.Helper()
	for _, h := range c.hosts {
		h.prepare(settings, list)
		h.daemon.Start()
		h.awaitDaemon()
	}
}

// prepare writes the settings of allocnetd and the network, if there is one.
func (h *host) prepare(settings, list string) {
	h.t.Helper()
	if list != "" {
		h.run("mkdir", "-p", "/run/net.d")
		h.run("sh", "-c", `echo "$0" >/run/net.d/10-net.conflist`, list)
	}
	require.NoError(h.t, os.WriteFile(h.settings, []byte("log { level = \"warn\" }\n"+settings), 0o600))
}

// TestMatrix connects hosts, allocations and published ports with each other, on one host and
// across hosts, and checks who the server takes for the client.
func TestMatrix(t *testing.T) {
	overlays := []overlay{{"vxlan", true, false}} // make hosts runs all
	if !short() {
		for _, masq := range []bool{false, true} {
			overlays = append(overlays, overlay{"vxlan", false, masq}, overlay{"host-gw", false, masq}, overlay{"host-gw", true, masq})
		}
		overlays = append(overlays, overlay{"vxlan", true, true})
	}
	for _, o := range overlays {
		for name, network := range map[string]struct{ settings, list string }{
			"embedded": {embedded, ""},
			"bridge":   {ofFiles, flannelList},
		} {
			t.Run(fmt.Sprintf("%s, %s, dual %v, masquerading of flanneld %v", o.backend, name, o.dual, o.masq), func(t *testing.T) {
				c := newCluster(t, o)
				c.start(network.settings, network.list)
				c.matrix(o.dual)
			})
		}
	}
}

// short reports whether only the part for make test is wanted.
func short() bool { return os.Getenv("ALLOCNET_ALL_HOSTS") == "" }

// question is one connection, and who the server may see: the addresses of a host, or of the
// allocation.
type question struct {
	what   string
	from   *host
	in     *allocation
	to     netip.Addr
	port   int
	source []string // nil for any address of the host
}

// matrix makes all connections between the first two hosts.
func (c *cluster) matrix(dual bool) {
	h, other := c.hosts[0], c.hosts[1]
	a, b := h.setup("a", "-p", "8080:80"), h.setup("b")
	far := other.setup("far", "-p", "8080:80")
	families := []func(*allocation, *host) (netip.Addr, netip.Addr){
		func(a *allocation, h *host) (netip.Addr, netip.Addr) {
			return netip.MustParseAddr(a.Address), h.address4
		},
	}
	if dual {
		families = append(families, func(a *allocation, h *host) (netip.Addr, netip.Addr) {
			return netip.MustParseAddr(a.AddressIPv6), h.address6
		})
	}
	for _, family := range families {
		ofA, ofH := family(a, h)
		ofB, _ := family(b, h)
		ofFar, ofOther := family(far, other)
		text := netip.Addr.String
		for _, q := range []question{
			{"host to allocation", h, nil, ofB, 80, nil},
			{"host to allocation of another host", h, nil, ofFar, 80, nil},
			{"host to its published port", h, nil, ofH, 8080, nil},
			{"host to a port of another host", h, nil, ofOther, 8080, []string{text(ofH)}},
			{"allocation to allocation", h, a, ofB, 80, []string{text(ofA)}},
			{"allocation to allocation of another host", h, a, ofFar, 80, []string{text(ofA)}},
			{"allocation to a port of its host", h, b, ofH, 8080, nil}, // masqueraded within the subnet, as by the reference plugin
			{"allocation to its own port", h, a, ofH, 8080, nil},
			{"allocation to a port of another host", h, a, ofOther, 8080, []string{text(ofH)}},
		} {
			for _, protocol := range []string{"tcp", "udp"} {
				c.t.(*testing.T).Run(fmt.Sprintf("%s, %s, IPv%d", q.what, protocol, 4+2*(q.to.BitLen()/128)), func(t *testing.T) {
					q.require(t, protocol)
				})
			}
		}
	}
	for _, h := range c.hosts {
		h.requireClean()
	}
}

func (q *question) require(t *testing.T, protocol string) {
	wanted := q.source
	if wanted == nil {
		wanted = q.from.addresses()
	}
	source, err := q.from.ask(q.in, protocol, net.JoinHostPort(q.to.String(), fmt.Sprint(q.port)))
	require.NoError(t, err)
	require.Contains(t, wanted, source)
}

// addresses returns all addresses of a host.
func (h *host) addresses() (list []string) {
	for line := range strings.Lines(h.run("ip", "-o", "address")) {
		prefix := netip.MustParsePrefix(strings.Fields(line)[3])
		list = append(list, prefix.Addr().String())
	}
	return list
}

// requireClean tears all allocations down and requires that nothing is left.
func (h *host) requireClean() {
	h.t.Helper()
	for _, id := range strings.Fields(h.run(h.bin+"/allocnet", "ls", "-q")) {
		h.teardown(id)
	}
	out := h.run(h.bin+"/allocnet", "gc", "--none", "--json")
	require.NotContains(h.t, out, `"id"`)
	eventually(h.t, "all links are deleted", func() bool { return !strings.Contains(h.run("ip", "-o", "link"), "veth") })
	for _, set := range []string{"map ip allocnet host_ports", "set ip allocnet open"} {
		out, err := h.try("sh", "-c", "nft list "+set) // a host without allocations has no table
		require.NotContains(h.t, out, "elements")
		require.True(h.t, err == nil || strings.Contains(out, "No such file"), out)
	}
}
