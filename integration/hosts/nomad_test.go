package hosts

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

const (
	nomadURL = "http://10.210.0.1:4646"
	nomadJob = "../../docs/nomad/cluster.nomad.hcl"
	recipes  = "../../docs/cluster.md"
)

// nomad is a cluster with a server of Nomad on the underlay and a client on each host.
type nomad struct {
	*cluster
	clients []*process.Process
	placed  map[*host]*allocation // the allocation of the job on each host
}

// newNomad does what docs/cluster.md says: with its files, on all hosts.
func newNomad(t *testing.T) *nomad {
	n := &nomad{cluster: newCluster(t, overlay{backend: "vxlan"}), placed: map[*host]*allocation{}}
	build(t, "nomad", programs(t), "github.com/hashicorp/nomad")
	buildPlugins(t)
	server := process.New(t, programs(t)+"/nomad", "agent", "-server", "-bootstrap-expect=1",
		"-bind=10.210.0.1", "-data-dir="+t.TempDir(), "-log-level=WARN")
	server.Start()
	for _, h := range n.hosts {
		h.follow(nomadRecipe(t))
		h.install()
		h.startDaemon()
		client := process.New(t, h.inside(h.bin+"/nomad", "agent", "-config=/etc/nomad.d", "-log-level=WARN")...)
		client.Env = []string{actVariable + "=serve"} // the tasks have it too
		client.Start()
		n.clients = append(n.clients, client)
	}
	eventually(t, "the clients are ready", func() bool {
		var nodes []struct{ Status string }
		return n.get("/v1/nodes", &nodes) == nil && len(nodes) == len(n.hosts) &&
			!slices.ContainsFunc(nodes, func(n struct{ Status string }) bool { return n.Status != "ready" })
	})
	return n
}

// nomadRecipe returns the files of the section on Nomad, by path.
func nomadRecipe(t testing.TB) map[string]string {
	t.Helper()
	text, err := os.ReadFile(recipes)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Nomad\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	files := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```\\w*\n(.*?)```").FindAllStringSubmatch(section, -1) {
		files[m[1]] = strings.ReplaceAll(m[2], "192.0.2.1", "10.210.0.1")
	}
	require.Len(t, files, 3)
	return files
}

// get reads from the API of Nomad.
func (n *nomad) get(path string, value any) error {
	r, err := http.Get(nomadURL + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, r.Status)
	}
	return json.NewDecoder(r.Body).Decode(value)
}

// command runs a command of Nomad.
func (n *nomad) command(args ...string) {
	n.t.Helper()
	c := exec.Command(programs(n.t)+"/nomad", args...)
	c.Env = append(os.Environ(), "NOMAD_ADDR="+nomadURL)
	out, err := c.CombinedOutput()
	require.NoError(n.t, err, "%q: %s", args, out)
}

// allocated is an allocation in the API of Nomad.
type allocated struct {
	ID            string
	NodeID        string
	ClientStatus  string
	NetworkStatus struct{ Address string }
}

// allocations returns those of the job that Nomad takes for running.
func (n *nomad) allocations() (list []allocated) {
	n.t.Helper()
	var stubs []allocated
	require.NoError(n.t, n.get("/v1/job/web/allocations", &stubs))
	for _, stub := range stubs {
		if stub.ClientStatus == "running" {
			require.NoError(n.t, n.get("/v1/allocation/"+stub.ID, &stub))
			list = append(list, stub)
		}
	}
	return list
}

// place runs the job and waits until it has one allocation on each host.
func (n *nomad) place() {
	n.t.Helper()
	self, err := os.Executable()
	require.NoError(n.t, err)
	n.command("job", "run", "-detach", "-var", "server="+self, nomadJob)
	eventually(n.t, "the job runs", func() bool { return len(n.allocations()) == len(n.hosts) })
	for _, placed := range n.allocations() {
		var node struct{ HTTPAddr string }
		require.NoError(n.t, n.get("/v1/node/"+placed.NodeID, &node))
		i := slices.IndexFunc(n.hosts, func(h *host) bool { return node.HTTPAddr == h.address4.String()+":4646" })
		require.GreaterOrEqual(n.t, i, 0, node.HTTPAddr)
		n.placed[n.hosts[i]] = &allocation{host: n.hosts[i], id: placed.ID, Address: placed.NetworkStatus.Address}
	}
	require.Len(n.t, n.placed, len(n.hosts))
}

// TestNomad runs a job on three clients as docs/cluster.md describes it, kills one of them, and
// stops the job.
func TestNomad(t *testing.T) {
	if short() {
		skip.LeaveTo(t, "make hosts")
	}
	n := newNomad(t)
	n.place()
	for h, a := range n.placed {
		require.True(t, strings.HasPrefix(a.Address, subnetPrefix(h.env()["FLANNEL_SUBNET"])), a.Address)
		require.Contains(t, h.run(h.bin+"/allocnet", "ls"), a.Address)
	}
	n.requireService(t)
	requirePeers(t, n.placed)
	n.killClient(t, 1)
	requirePeers(t, n.placed)

	n.command("job", "stop", "-purge", "web")
	for _, h := range n.hosts {
		eventually(t, "no allocation is left on "+h.name, func() bool { return h.run(h.bin+"/allocnet", "ls", "-q") == "" })
		h.requireClean()
		require.Empty(t, h.run("ls", "/run/netns"))
		out, err := h.try("sh", "-c", "cat /proc/net/nf_conntrack 2>/dev/null; nft list ruleset; ip route")
		require.NoError(t, err)
		require.NotContains(t, out, n.placed[h].Address)
	}
}

// requireService requires that Nomad registers the addresses of the allocations.
func (n *nomad) requireService(t *testing.T) {
	t.Helper()
	var services []struct {
		Address string
		Port    int
	}
	require.NoError(t, n.get("/v1/service/web", &services))
	var registered, addresses []string
	for _, s := range services {
		registered = append(registered, net.JoinHostPort(s.Address, fmt.Sprint(s.Port)))
	}
	for _, a := range n.placed {
		addresses = append(addresses, net.JoinHostPort(a.Address, "80"))
	}
	require.ElementsMatch(t, addresses, registered)
}

// killClient kills Nomad and allocnetd of one host while another host's allocation asks its
// allocation, and starts them again. Nomad saves the network of an allocation within a minute;
// before that, it would replace the allocation.
func (n *nomad) killClient(t *testing.T, i int) {
	h, client := n.hosts[i], n.clients[i]
	eventually(t, "Nomad has saved the network", func() bool {
		_, err := h.try("grep", "-q", "network_status", "/var/lib/nomad/client/state.db")
		return err == nil
	})
	before := n.allocations()
	l := n.load(n.placed[n.hosts[0]], n.placed[h])
	client.Kill()
	h.daemon.Kill()
	l.requireAnswers(t, "without Nomad and allocnetd")
	h.daemon.Start()
	h.awaitDaemon()
	client.Start()
	eventually(t, "the client answers", func() bool {
		r, err := http.Get("http://" + h.address4.String() + ":4646/v1/client/allocation/" + n.placed[h].id + "/stats")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	l.requireAnswers(t, "after Nomad and allocnetd have started again")
	l.end()
	require.ElementsMatch(t, before, n.allocations())
	h.run("sh", "-ec", `$0 check "$($0 ls -q)"`, h.bin+"/allocnet")
}
