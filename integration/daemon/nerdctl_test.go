package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// nerdctlNetwork is a network in the form in which nerdctl writes it: its own keys at the
// top, and a chain that always has these plugins.
func nerdctlNetwork(name, bridge, subnet, gateway string, labels map[string]string) []byte {
	list, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": name, "nerdctlID": fmt.Sprintf("%064x", len(name)), "nerdctlLabels": labels,
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
					"ranges": []any{[]any{map[string]any{"subnet": subnet, "gateway": gateway}}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
			map[string]any{"type": "firewall", "ingressPolicy": "same-bridge"},
			map[string]any{"type": "tuning"},
		},
	})
	if err != nil {
		panic(err)
	}
	return list
}

// nerdctl is what nerdctl does with go-cni for its containers: two of them in its default
// network, and one in another network.
type nerdctl struct {
	h       *host
	plugins string // directory
	result  []string
}

// nerdctlContainer is a container that responds with its name.
type nerdctlContainer struct {
	name    string
	address string
	sandbox *sandbox.Sandbox
	remove  func() error
}

// run attaches a container as nerdctl's OCI hook does, and notes the result.
func (n *nerdctl) run(name string, network []byte, port int) *nerdctlContainer {
	t := n.h.T
	t.Helper()
	s, err := sandbox.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	testbed.Serve(t, s.Path(), "tcp", 80, name)
	cni, err := gocni.New(gocni.WithPluginDir([]string{n.plugins}), gocni.WithConfListBytes(network))
	require.NoError(t, err)
	options := []gocni.NamespaceOpts{
		gocni.WithCapabilityPortMap([]gocni.PortMapping{{HostPort: int32(port), ContainerPort: 80, Protocol: "tcp", HostIP: "0.0.0.0"}}),
		gocni.WithLabels(map[string]string{"IgnoreUnknown": "1"}), gocni.WithArgs("NERDCTL_CNI_DHCP_HOSTNAME", name),
	}
	id := "default-" + name // nerdctl's namespace and the container
	result, err := cni.Setup(t.Context(), id, s.Path(), options...)
	require.NoError(t, err)
	text, err := json.Marshal(result.Raw())
	require.NoError(t, err)
	n.result = append(n.result, generated.ReplaceAllString(string(text), "(any)"))
	return &nerdctlContainer{name, result.Interfaces["eth0"].IPConfigs[0].IP.String(), s, func() error {
		return cni.Remove(t.Context(), id, s.Path(), options...)
	}}
}

// generated matches what plugins choose at random.
var generated = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}|veth[0-9a-z]+`)

// noteReach notes whether a request is answered.
func (n *nerdctl) noteReach(what, netns, address string) {
	answer, err := testbed.Ask(testbed.Silence, netns, "tcp", address)
	n.result = append(n.result, fmt.Sprintf("%s: %q, %t", what, answer, err == nil))
}

// TestNerdctl attaches containers to networks of nerdctl. The drop-in plugins return the
// same results as the reference plugins, the same connections are possible, and nothing
// is left. testdata/nerdctl.txt has what the reference plugins do.
func TestNerdctl(t *testing.T) {
	want, err := os.ReadFile("testdata/nerdctl.txt")
	require.NoError(t, err)
	for _, name := range []string{"reference", "drop-in"} {
		t.Run(name, func(t *testing.T) {
			n := &nerdctl{plugins: testbed.PluginDir}
			if name == "reference" {
				skip.InShort(t)
			} else {
				n.plugins = testbed.DropIns(t)
			}
			n.h = newHost(t, testbed.Native.Engine)
			n.test()
			if name == "reference" { // it leaves tracked connections
				require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
			}
			require.Equal(t, string(want), strings.Join(n.result, "\n")+"\n")
		})
	}
}

func (n *nerdctl) test() {
	t := n.h.T
	own := nerdctlNetwork("bridge", "nerdctl0", "10.99.0.0/24", "10.99.0.1", map[string]string{"nerdctl/default-network": "true"})
	other := nerdctlNetwork("other", "br-000000000005", "10.4.1.0/24", "10.4.1.1", map[string]string{"app": "web"})
	web, db, stranger := n.run("web", own, 8080), n.run("db", own, 8081), n.run("stranger", other, 8082)
	for port, c := range map[int]*nerdctlContainer{8080: web, 8081: db, 8082: stranger} {
		testbed.RequireAnswer(t, n.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, port), c.name)
	}
	testbed.RequireAnswer(t, db.sandbox.Path(), "tcp", web.address+":80", "web")
	testbed.RequireAnswer(t, web.sandbox.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "web")
	testbed.RequireSilence(t, stranger.sandbox.Path(), "tcp", web.address+":80")
	n.noteReach("another network to a host port", stranger.sandbox.Path(), testbed.HostPort(testhost.Host4, 8080))
	for _, c := range []*nerdctlContainer{web, db, stranger} {
		require.NoError(t, c.remove())
		require.NoError(t, c.remove(), "DEL may be repeated")
	}
	testbed.RequireRefused(t, n.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
	for _, network := range []string{"bridge", "other"} {
		leases, err := filepath.Glob(filepath.Join("/var/lib/cni/networks", network, "10.*"))
		require.NoError(t, err)
		require.Empty(t, leases)
	}
}
