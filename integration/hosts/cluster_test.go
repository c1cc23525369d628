package hosts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/process"
)

// The underlay is a bridge of the private host. etcd listens on its address.
const (
	underlay = "under0"
	etcdURL  = "http://10.210.0.1:2379"
)

// cluster is three hosts with flanneld on an underlay, and etcd.
type cluster struct {
	t     testing.TB
	etcd  *process.Process
	hosts []*host
}

// overlay is the configuration of flannel.
type overlay struct {
	backend string // vxlan or host-gw
	dual    bool
	masq    bool // flanneld masquerades, not allocnet
}

// Networks of the cluster.
var (
	cluster4 = netip.MustParsePrefix("10.5.0.0/16")
	cluster6 = netip.MustParsePrefix("fd00:5::/48")
)

func (o overlay) String() string {
	c := map[string]any{
		"Network": cluster4, "SubnetLen": 24, "Backend": map[string]any{"Type": o.backend},
	}
	if o.dual {
		c["EnableIPv6"], c["IPv6Network"], c["IPv6SubnetLen"] = true, cluster6, 64
	}
	text, _ := json.Marshal(c)
	return string(text)
}

// newCluster starts everything but allocnetd.
func newCluster(t testing.TB, o overlay) *cluster {
	t.Helper()
	privhost.RequireRoot(t, "etcd", "ip", "nsenter", "unshare", "nft", "iptables")
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: underlay}}
	require.NoError(t, netlink.LinkAdd(link))
	t.Cleanup(func() { require.NoError(t, netlink.LinkDel(link)) })
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+underlay+"/accept_dad", []byte("0"), 0o600))
	for _, address := range []string{"10.210.0.1/24", "fd00:210::1/64"} {
		addAddress(t, link, address)
	}
	require.NoError(t, netlink.LinkSetUp(link))
	c := &cluster{t: t}
	c.etcd = process.New(t, "etcd", "--data-dir", t.TempDir(), "--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL,
		"--listen-peer-urls", "http://10.210.0.1:2380", "--log-level", "error", "--unsafe-no-fsync")
	c.startEtcd()
	c.put("/coreos.com/network/config", o.String())
	for i := range 3 {
		c.hosts = append(c.hosts, newHost(t, i+1, o))
	}
	return c
}

func addAddress(t testing.TB, link netlink.Link, address string) {
	t.Helper()
	a, err := netlink.ParseAddr(address)
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(link, a))
}

func (c *cluster) startEtcd() {
	c.t.Helper()
	c.etcd.Start()
	eventually(c.t, "etcd answers", func() bool {
		r, err := http.Get(etcdURL + "/health")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// etcdRequest makes a request through etcd's gateway for JSON, in which keys and values are
// encoded in base64, as encoding/json does with bytes.
func (c *cluster) etcdRequest(act string, request map[string]any) []byte {
	c.t.Helper()
	body, err := json.Marshal(request)
	require.NoError(c.t, err)
	r, err := http.Post(etcdURL+"/v3/kv/"+act, "application/json", bytes.NewReader(body))
	require.NoError(c.t, err)
	defer r.Body.Close()
	var answer bytes.Buffer
	_, err = answer.ReadFrom(r.Body)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, r.StatusCode, answer.String())
	return answer.Bytes()
}

func (c *cluster) put(key, value string) {
	c.t.Helper()
	c.etcdRequest("put", map[string]any{"key": []byte(key), "value": []byte(value)})
}

// expire removes the lease of a host's subnet, as if the host had been away for too long.
func (c *cluster) expire(h *host) {
	c.t.Helper()
	key := "/coreos.com/network/subnets/" + strings.ReplaceAll(h.env()["FLANNEL_SUBNET"], ".1/", ".0-")
	answer := c.etcdRequest("deleterange", map[string]any{"key": []byte(key), "range_end": []byte(key + "~")})
	require.Contains(c.t, string(answer), `"deleted":"1"`, key)
}

// host is a network namespace and a mount namespace with its own state directories.
type host struct {
	t        testing.TB
	name     string
	address4 netip.Addr // on the underlay
	address6 netip.Addr
	bin      string
	holder   *process.Process // keeps the namespaces
	flanneld *process.Process
	daemon   *process.Process
	settings string // file of allocnetd
}

func newHost(t testing.TB, number int, o overlay) *host {
	t.Helper()
	h := &host{
		t: t, name: fmt.Sprint("h", number), bin: programs(t),
		address4: netip.AddrFrom4([4]byte{10, 210, 0, byte(10 + number)}),
		address6: netip.MustParseAddr(fmt.Sprint("fd00:210::1", number)),
	}
	h.holder = process.New(t, "unshare", "--mount", "--net", "--propagation", "private", "sh", "-ec",
		`for d in /run /var/lib/cni; do mount -t tmpfs tmpfs $d; done; echo ready; exec sleep infinity`)
	h.holder.Start()
	eventually(t, h.name+" is there", func() bool { return strings.Contains(h.holder.Output(), "ready") })
	h.connect()
	args := []string{h.bin + "/flanneld", "--etcd-endpoints=" + etcdURL, "--iface=eth0", "--public-ip=" + h.address4.String(), fmt.Sprint("--ip-masq=", o.masq)}
	if o.dual {
		args = append(args, "--public-ipv6="+h.address6.String())
	}
	h.flanneld = process.New(t, h.inside(args...)...)
	h.startFlanneld()
	h.settings = filepath.Join(t.TempDir(), "allocnetd.hcl")
	h.daemon = process.New(t, h.inside(h.bin+"/allocnetd", "--config", h.settings)...)
	return h
}

// connect adds the host's interface, and lets the host forward.
func (h *host) connect() {
	h.t.Helper()
	peer := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: h.name}, PeerName: "eth0", PeerNamespace: netlink.NsPid(h.pid())}
	require.NoError(h.t, netlink.LinkAdd(peer))
	h.t.Cleanup(func() { require.NoError(h.t, netlink.LinkDel(peer)) }) // the kernel destroys the namespace later
	bridge, err := netlink.LinkByName(underlay)
	require.NoError(h.t, err)
	require.NoError(h.t, netlink.LinkSetMaster(peer, bridge))
	require.NoError(h.t, netlink.LinkSetUp(peer))
	h.run("sh", "-ec", `
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ip link set lo up
ip address add $0/24 dev eth0
ip address add $1/64 dev eth0
ip link set eth0 up
ip route add default via 10.210.0.1
ip route add default via fd00:210::1`, h.address4.String(), h.address6.String())
}

func (h *host) pid() int { return h.holder.PID() }

// inside returns the command line that runs a program in the host.
func (h *host) inside(args ...string) []string {
	return append([]string{"nsenter", "--target", fmt.Sprint(h.pid()), "--mount", "--net", "--"}, args...)
}

// run runs a program in the host and returns its output.
func (h *host) run(args ...string) string {
	h.t.Helper()
	out, err := h.try(args...)
	require.NoError(h.t, err, "%s: %q: %s", h.name, args, out)
	return out
}

func (h *host) try(args ...string) (string, error) {
	line := h.inside(args...)
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	return string(out), err
}

// startFlanneld starts flanneld and waits until it has leased a subnet.
func (h *host) startFlanneld() {
	h.t.Helper()
	_, _ = h.try("rm", "-f", "/run/flannel/subnet.env")
	h.flanneld.Start()
	h.awaitSubnet()
}

func (h *host) awaitSubnet() {
	h.t.Helper()
	eventually(h.t, h.name+" has a subnet", func() bool { return h.flanneld.HasEnded() || h.env()["FLANNEL_SUBNET"] != "" })
	require.False(h.t, h.flanneld.HasEnded(), h.flanneld.Output())
}

// env returns what flanneld has written.
func (h *host) env() map[string]string {
	text, _ := h.try("cat", "/run/flannel/subnet.env")
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = value
		}
	}
	return values
}

// awaitDaemon waits until allocnetd is ready.
func (h *host) awaitDaemon() {
	h.t.Helper()
	eventually(h.t, "allocnetd of "+h.name+" is ready", func() bool {
		_, err := h.try(h.bin+"/allocnet", "ready")
		return h.daemon.HasEnded() || err == nil
	})
	require.False(h.t, h.daemon.HasEnded(), h.daemon.Output())
}

// allocation is what allocnet setup prints of an allocation.
type allocation struct {
	host        *host
	id          string
	Address     string `json:"address"`
	AddressIPv6 string `json:"addressIPv6"`
}

// setup sets up an allocation with a namespace of its own, and starts a server in it.
func (h *host) setup(id string, args ...string) *allocation {
	h.t.Helper()
	a := h.create(id, args...)
	a.serve("80")
	return a
}

// create sets up an allocation with a namespace of its own.
func (h *host) create(id string, args ...string) *allocation {
	h.t.Helper()
	a := &allocation{host: h, id: id}
	out := h.run(append([]string{h.bin + "/allocnet", "setup", id, "--create", "--json"}, args...)...)
	require.NoError(h.t, json.Unmarshal([]byte(out[strings.Index(out, "{"):]), a), out)
	return a
}

func (h *host) teardown(id string) {
	h.t.Helper()
	h.run(h.bin+"/allocnet", "teardown", id)
}

// inside returns the command line that runs a program in the allocation.
func (a *allocation) inside(args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + a.id, "--"}, args...)
}

// serve starts a server in the allocation.
func (a *allocation) serve(port string) {
	a.host.t.Helper()
	self, err := os.Executable()
	require.NoError(a.host.t, err)
	s := process.New(a.host.t, a.host.inside(a.inside(self, port)...)...)
	s.Env = []string{actVariable + "=serve"}
	s.Start()
	eventually(a.host.t, "the server listens", func() bool { return s.HasEnded() || strings.Contains(s.Output(), "ready") })
	require.False(a.host.t, s.HasEnded(), s.Output())
}

// ask asks a server, from the host or, if a is not nil, from an allocation of it, and returns
// the address from which the server was asked.
func (h *host) ask(a *allocation, protocol, address string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	args := []string{"env", actVariable + "=ask", self, protocol, address}
	if a != nil {
		args = a.inside(args...)
	}
	out, err := h.try(args...)
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(out))
	}
	return strings.TrimSpace(out), nil
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, time.Minute, 10*time.Millisecond, what)
}
