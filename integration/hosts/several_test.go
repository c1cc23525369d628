package hosts

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// storage is a second network of flannel, with a flanneld of its own.
const (
	storagePrefix = "/storage/network"
	storageConfig = `{"Network": "10.6.0.0/16", "SubnetLen": 24, "Backend": {"Type": "vxlan", "VNI": 2}}`
	storageFile   = "/run/flannel/storage.env"
)

// storageList returns the second network as docs/cluster.md has it.
func storageList(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(recipes)
	require.NoError(t, err)
	_, list, found := strings.Cut(string(text), "<!-- file: /etc/cni/net.d/30-storage.conflist -->\n```json\n")
	require.True(t, found)
	list, _, _ = strings.Cut(list, "```")
	return list
}

// startStorage starts the second flanneld, and allocnetd with both networks.
func (h *host) startStorage(list string) (flanneld *process.Process) {
	h.t.Helper()
	flanneld = process.New(h.t, h.inside(h.bin+"/flanneld", "--etcd-endpoints="+etcdURL, "--etcd-prefix="+storagePrefix,
		"--iface=eth0", "--public-ip="+h.address4.String(), "--ip-masq=false", "--subnet-file="+storageFile)...)
	flanneld.Start()
	eventually(h.t, h.name+" has a second subnet", func() bool {
		_, err := h.try("grep", "FLANNEL_SUBNET", storageFile)
		return flanneld.HasEnded() || err == nil
	})
	require.False(h.t, flanneld.HasEnded(), flanneld.Output())
	h.prepare(ofFiles, flannelList)
	h.write("/run/net.d/30-storage.conflist", list)
	h.daemon.Start()
	h.awaitDaemon()
	return flanneld
}

// address returns the IPv4 address of another interface of an allocation.
func (a *allocation) address(link string) string {
	a.host.t.Helper()
	fields := strings.Fields(a.host.run("ip", "-n", a.id, "-4", "-o", "address", "show", "dev", link))
	i := slices.Index(fields, "inet")
	require.Positive(a.host.t, i, fields)
	return netip.MustParsePrefix(fields[i+1]).Addr().String()
}

// TestTwoClusters: each host has two networks of flannel, from two flanneld. Allocations reach each
// other in both with the address of each. The second one may be missing.
func TestTwoClusters(t *testing.T) {
	if short() {
		skip.LeaveTo(t, "make hosts")
	}
	c := newCluster(t, overlay{backend: "vxlan"})
	c.put(storagePrefix+"/config", storageConfig)
	one, two := c.hosts[0], c.hosts[1]
	list := storageList(t)
	for _, h := range []*host{one, two} {
		h.startStorage(list)
	}
	a := one.setup("a", "--network", "cbr0", "--network", "storage")
	b := two.setup("b", "--network", "cbr0", "--network", "storage")
	only := two.setup("only", "--network", "storage")
	requireReach(t, a, b)
	for _, q := range []struct{ what, to, source string }{
		{"first network", b.address("eth0"), a.address("eth0")},
		{"second network", b.address("eth1"), a.address("eth1")},
		{"an allocation of the second network alone", only.address("eth0"), a.address("eth1")},
	} {
		for _, protocol := range []string{"tcp", "udp"} {
			var source string
			eventually(t, q.what, func() (reached bool) {
				var err error
				source, err = one.ask(a, protocol, net.JoinHostPort(q.to, "80"))
				return err == nil
			})
			require.Equal(t, q.source, source, q.what)
		}
	}

	two.run("rm", storageFile)
	out, err := two.try(two.bin+"/allocnet", "setup", "late", "--create", "--network", "storage", "--json")
	require.Error(t, err)
	require.Contains(t, out, `"code":50`)
	require.Contains(t, out, storageFile)
	late := two.setup("late", "--network", "cbr0")
	requireReach(t, a, late)
	for _, h := range []*host{one, two} {
		h.requireClean()
	}
}
