package conflist

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	oneSubnet   = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	otherSubnet = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.2.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	dualSubnet  = oneSubnet + "FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:1::1/64\n"
)

// subnetsOf returns the type of the first plugin and its ranges and routes.
func subnetsOf(t *testing.T, n *Network, plugin int) (kind string, subnets, routes []string) {
	t.Helper()
	var conf struct {
		Type string
		IPAM struct {
			Ranges [][]struct{ Subnet string }
			Routes []struct{ Dst string }
		}
	}
	require.NoError(t, json.Unmarshal(n.List.Plugins[plugin].Bytes, &conf))
	for _, set := range conf.IPAM.Ranges {
		subnets = append(subnets, set[0].Subnet)
	}
	for _, r := range conf.IPAM.Routes {
		routes = append(routes, r.Dst)
	}
	return conf.Type, subnets, routes
}

// TestResolving: a network of flannel is that of its delegate while the host has a subnet.
func TestResolving(t *testing.T) {
	dir := t.TempDir()
	env := filepath.Join(dir, "subnet.env")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "10-cluster.conflist"), []byte(`{"name": "cluster", "cniVersion": "1.0.0", "plugins": [
		{"type": "flannel", "subnetFile": "`+env+`", "delegate": {"hairpinMode": true}, "capabilities": {"mac": true}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`), 0o600))
	d := New(dir, nil).Resolving()
	now := time.Now()
	d.now = func() time.Time { now = now.Add(time.Hour); return now } // all stamps are settled
	lookup := func() *Network {
		n, err := d.Lookup("")
		require.NoError(t, err)
		all, problems := d.Networks()
		require.Empty(t, problems)
		require.Equal(t, []*Network{n}, all)
		return n
	}
	raw := lookup()
	require.Equal(t, []string{"flannel", "portmap"}, raw.PluginTypes())
	require.Nil(t, raw.Source)

	require.NoError(t, os.WriteFile(env, []byte(oneSubnet), 0o600))
	one := lookup()
	kind, subnets, routes := subnetsOf(t, one, 0)
	require.Equal(t, "bridge", kind)
	require.Equal(t, []string{"10.5.1.0/24"}, subnets)
	require.Equal(t, []string{"10.5.0.0/16"}, routes)
	require.Same(t, raw, one.Source)
	require.Equal(t, raw.File, one.File)
	require.True(t, one.Declares("mac"), "arguments reach the delegate")
	require.Same(t, one, lookup())
	require.NoError(t, os.WriteFile(env, []byte(oneSubnet+"# another stamp\n"), 0o600))
	require.Same(t, one, lookup(), "the content is the same")

	require.NoError(t, os.WriteFile(env, []byte(otherSubnet), 0o600))
	_, subnets, _ = subnetsOf(t, lookup(), 0)
	require.Equal(t, []string{"10.5.2.0/24"}, subnets)
	recorded, err := d.Recorded("cluster", one.Bytes)
	require.NoError(t, err)
	_, subnets, _ = subnetsOf(t, recorded, 0)
	require.Equal(t, []string{"10.5.1.0/24"}, subnets, "a record keeps its own")

	require.NoError(t, os.WriteFile(env, []byte("FLANNEL_SUBNET=x\n"), 0o600))
	require.Same(t, raw, lookup())
	require.NoError(t, os.Remove(env))
	require.Same(t, raw, lookup())

	plain, err := New(dir, nil).Lookup("")
	require.NoError(t, err)
	require.Equal(t, []string{"flannel", "portmap"}, plain.PluginTypes(), "the default is not to resolve")
}

// TestEmbeddedOnACluster: the embedded network has the subnets of the host, and default routes
// of their families.
func TestEmbeddedOnACluster(t *testing.T) {
	dir := t.TempDir()
	env := filepath.Join(dir, "subnet.env")
	options := EmbeddedOptions{StateDir: dir, SubnetsFrom: env}
	embedded, err := Embedded(options)
	require.NoError(t, err)
	d := New(filepath.Join(dir, "none"), embedded).Resolving()
	n, err := d.Lookup(EmbeddedName)
	require.NoError(t, err)
	require.Equal(t, []string{"loopback", "flannel", "firewall", "portmap", "policy"}, n.PluginTypes())
	for text, want := range map[string]struct{ subnets, routes []string }{
		oneSubnet:  {[]string{"10.5.1.0/24"}, []string{"0.0.0.0/0", "10.5.0.0/16"}},
		dualSubnet: {[]string{"10.5.1.0/24", "fd00:5:0:1::/64"}, []string{"0.0.0.0/0", "::/0", "10.5.0.0/16", "fd00:5::/48"}},
	} {
		require.NoError(t, os.WriteFile(env, []byte(text), 0o600))
		n, err := d.Lookup(EmbeddedName)
		require.NoError(t, err)
		kind, subnets, routes := subnetsOf(t, n, 1)
		require.Equal(t, "ptp", kind)
		require.Equal(t, want.subnets, subnets)
		require.Equal(t, want.routes, routes)
		require.True(t, n.Declares("ips"))
	}
	for want, o := range map[string]EmbeddedOptions{
		"is not an absolute path":             {StateDir: dir, SubnetsFrom: "subnet.env"},
		"give either the file or the subnets": {StateDir: dir, SubnetsFrom: env, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
	} {
		_, err := Embedded(o)
		require.ErrorContains(t, err, want)
	}
}
