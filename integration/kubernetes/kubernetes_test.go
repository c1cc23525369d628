package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/testing/ociimage"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// pods is the number of pods, each of which has a host port and probes.
const pods = 20

// firstPort is the host port of the first pod.
const firstPort = 8001

// server is the deployment of one pod, which serves its name. While one is replaced, none is there: they want the same host port.
const server = `apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 5
      containers:
        - name: web
          image: ` + ociimage.Name + `
          command: [/bin/busybox, sh, -c, "trap exit TERM; busybox mkdir /www; echo $HOSTNAME >/www/index.html; busybox httpd -f -p 80 -h /www & wait"]
          ports: [{containerPort: 80, hostPort: %[2]d}]
          readinessProbe: {httpGet: {port: 80, path: /index.html}, periodSeconds: 1}
          livenessProbe: {httpGet: {port: 80, path: /index.html}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 3}
---
`

func name(i int) string { return fmt.Sprintf("web-%d", i) }

// TestKubernetes takes a node through its life: it gets its network, runs pods, replaces them, loses programs and rules,
// reboots, and is as before when the pods have gone.
func TestKubernetes(t *testing.T) {
	n := newNode(t)
	n.start()
	n.load()
	n.eventually("the node waits for a network", func() bool { return strings.Contains(n.condition(), "cni plugin not initialized") })
	n.apply(n.daemonSet())
	n.ready()

	var documents strings.Builder
	for i := range pods {
		fmt.Fprintf(&documents, server, name(i), firstPort+i)
	}
	n.apply(documents.String())
	n.requireServed()
	n.requirePeers()
	n.requireNoFailure("start")

	n.replaced()
	n.killed()
	n.rollOut()
	n.flushed()
	n.rebooted()
	n.removed(documents.String())
}

// daemonSet returns the DaemonSet for pods that talk to those of their node.
func (n *node) daemonSet() string {
	text, err := os.ReadFile("../../deploy/daemonset.yaml")
	require.NoError(n.t, err)
	const setting = "- {name: ALLOCNETD_MANAGER_PRIMARY, value: allocnet}"
	require.Contains(n.t, string(text), "# "+setting)
	return strings.Replace(string(text), "# "+setting, setting, 1)
}

// ready waits until the node is ready and its daemon, too.
func (n *node) ready() {
	n.t.Helper()
	n.eventually("the node is ready", func() bool { return strings.HasPrefix(n.condition(), "True") })
	n.do("-n", "kube-system", "rollout", "status", "ds/allocnet", "--timeout=5m")
}

// condition returns whether the node is ready, and why.
func (n *node) condition() string {
	out, _ := n.try("get", "node", "node", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}`)
	return out
}

// pod is what the tests read of a pod.
type pod struct {
	Metadata struct {
		Name, DeletionTimestamp string
		Labels                  map[string]string
	}
	Status struct {
		PodIP             string
		ContainerStatuses []struct {
			Ready        bool
			RestartCount int
		}
	}
}

func (p *pod) ready() bool {
	return p.Metadata.DeletionTimestamp == "" && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
}

// list returns the pods of the deployments.
func (n *node) list() []pod {
	n.t.Helper()
	var l struct{ Items []pod }
	require.NoError(n.t, json.Unmarshal([]byte(n.do("get", "pods", "-o", "json")), &l))
	return l.Items
}

// served returns the pod of each deployment if each has one, which is ready and answers at its host port.
func (n *node) served() (map[string]pod, error) {
	all := map[string]pod{}
	for _, p := range n.list() {
		if p.ready() {
			all[p.Metadata.Labels["app"]] = p
		}
	}
	if len(all) != pods {
		return nil, fmt.Errorf("%d of %d pods are ready", len(all), pods)
	}
	var errs []error
	for i := range pods {
		p := all[name(i)]
		if body, err := n.get(firstPort + i); err != nil || strings.TrimSpace(body) != p.Metadata.Name {
			errs = append(errs, fmt.Errorf("pod %s at port %d: %q, %w", p.Metadata.Name, firstPort+i, body, err))
		}
	}
	return all, errors.Join(errs...)
}

// requireServed waits until all pods are served.
func (n *node) requireServed() (all map[string]pod) {
	n.t.Helper()
	n.soon("all pods answer at their host ports", func() (err error) { all, err = n.served(); return err })
	return all
}

// get asks a host port from the external machine.
func (n *node) get(port int) (string, error) { return testhost.Get(n.outside, atHost(port)) }

func atHost(port int) string { return fmt.Sprintf("http://%s:%d/", testhost.Host4.Addr(), port) }

// requirePeers has each pod ask the next one, at its address and at its host port.
func (n *node) requirePeers() {
	n.t.Helper()
	all, namespaces := n.requireServed(), n.namespaces()
	for i := range pods {
		next := (i + 1) % pods
		from, to := all[name(i)], all[name(next)]
		require.Contains(n.t, namespaces, from.Status.PodIP)
		s, err := sandbox.Open(namespaces[from.Status.PodIP])
		require.NoError(n.t, err)
		for _, at := range []string{"http://" + to.Status.PodIP + "/", atHost(firstPort + next)} {
			body, err := testhost.Get(s, at)
			require.NoError(n.t, err, "%s asks %s", from.Metadata.Name, at)
			require.Equal(n.t, to.Metadata.Name, strings.TrimSpace(body), at)
		}
		require.NoError(n.t, s.Close())
	}
}

// namespaces returns the paths of the network namespaces by their addresses.
func (n *node) namespaces() map[string]string {
	n.t.Helper()
	paths, err := filepath.Glob("/run/netns/*")
	require.NoError(n.t, err)
	found := map[string]string{}
	for _, path := range paths {
		s, err := sandbox.Open(path)
		require.NoError(n.t, err)
		require.NoError(n.t, s.Do(func() error {
			addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
			for _, a := range addresses {
				found[a.IP.String()] = path
			}
			return err
		}))
		require.NoError(n.t, s.Close())
	}
	return found
}

// requireNoFailure requires that no network of a pod could not be set up or removed so far.
func (n *node) requireNoFailure(what string) {
	n.t.Helper()
	for _, reason := range []string{"FailedCreatePodSandBox", "FailedKillPod"} {
		require.Empty(n.t, n.do("get", "events", "-A", "--field-selector", "reason="+reason, "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`), what)
	}
}

// replaced replaces pods by rollouts, and deletes some by force: the successor starts while the predecessor still runs.
func (n *node) replaced() {
	before := n.requireServed()
	var deployments, victims []string
	for i := range pods {
		if i%2 == 0 {
			deployments = append(deployments, "deployment/"+name(i))
		} else {
			victims = append(victims, before[name(i)].Metadata.Name)
		}
	}
	waiting := n.watchWaiting()
	n.do(append([]string{"rollout", "restart"}, deployments...)...)
	n.do(append([]string{"delete", "pod", "--force", "--grace-period=0"}, victims...)...)
	n.soon("all pods are replaced", func() error {
		after, err := n.served()
		for app, p := range after {
			if before[app].Metadata.Name == p.Metadata.Name {
				err = errors.Join(err, fmt.Errorf("%s is not replaced", app))
			}
		}
		return err
	})
	require.NotZero(n.t, waiting(), "no successor started before its predecessor had gone")
	n.requirePeers()
	n.requireNoFailure("replaced pods")
}

// watchWaiting asks allocnetd, until the function that it returns is called, for allocations that wait for the host port of another
// one. That returns how many there were.
func (n *node) watchWaiting() (end func() int) {
	c, stop := client.New(client.Config{}), make(chan struct{})
	var watching sync.WaitGroup
	seen := map[string]bool{}
	watching.Go(func() {
		for {
			records, err := c.List(n.t.Context())
			if err != nil {
				n.t.Errorf("list allocations: %v", err)
				return
			}
			for _, r := range records {
				if len(r.Waiting) > 0 {
					seen[r.ID] = true
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	return func() int {
		close(stop)
		watching.Wait()
		n.t.Logf("%d pods waited for the host port of their predecessor", len(seen))
		return len(seen)
	}
}

// load asks the host ports, one after the other, until it is ended.
type load struct {
	answers atomic.Int64
	stop    chan struct{}
	ended   sync.WaitGroup
	errs    []error
}

// ask begins a load on all host ports but those of the first pod.
func (n *node) ask() *load {
	l := &load{stop: make(chan struct{})}
	l.ended.Go(func() {
		for i := 0; ; i = (i + 1) % (pods - 1) {
			select {
			case <-l.stop:
				return
			default:
			}
			if _, err := n.get(firstPort + 1 + i); err != nil {
				l.errs = append(l.errs, err)
			}
			l.answers.Add(1)
		}
	})
	return l
}

// require ends the load, after each port was asked again, and requires that each question was answered.
func (l *load) require(n *node, what string) {
	n.t.Helper()
	asked := l.answers.Load()
	n.eventually("questions", func() bool { return l.answers.Load() > asked+pods })
	close(l.stop)
	l.ended.Wait()
	require.Empty(n.t, l.errs, "%s, of %d questions", what, l.answers.Load())
	n.t.Logf("%s: %d questions, all answered", what, l.answers.Load())
}

// another replaces the first pod, whose network is set up and removed therefore.
func (n *node) another() {
	n.t.Helper()
	n.do("rollout", "restart", "deployment/"+name(0))
	n.do("rollout", "status", "deployment/"+name(0), "--timeout=3m")
	n.requireServed()
}

// killed kills the programs of the node one after the other, while pods answer.
func (n *node) killed() {
	n.t.Helper()
	restarts := n.restarts()
	for _, victim := range []struct {
		name  string
		kill  func()
		start func()
	}{
		{"allocnetd", func() { n.killDaemon() }, n.ready},
		{"containerd", n.containerd.Kill, n.startContainerd},
		{"kubelet", n.kubelet.Kill, n.kubelet.Start},
		{"etcd and the API server", func() { n.etcd.Kill(); n.apiserver.Kill() }, n.startServers},
	} {
		l := n.ask()
		victim.kill()
		victim.start()
		n.eventually("the node is ready", func() bool { return strings.HasPrefix(n.condition(), "True") })
		n.another()
		l.require(n, victim.name+" is killed")
	}
	require.Equal(n.t, restarts, n.restarts(), "the pods ran on")
}

func (n *node) startServers() {
	n.etcd.Start()
	n.apiserver.Start()
	n.eventually("the API server is ready", func() bool { _, err := n.try("get", "--raw", "/readyz"); return err == nil })
	for _, p := range []*process.Process{n.controllers, n.scheduler} { // without leader election, they may have ended
		if p.HasEnded() {
			p.Start()
		}
	}
}

// restarts returns how often the containers of the pods were started again. The first pod is replaced meanwhile.
func (n *node) restarts() map[string]int {
	n.t.Helper()
	counts := map[string]int{}
	for app, p := range n.requireServed() {
		if app != name(0) {
			counts[p.Metadata.Name] = p.Status.ContainerStatuses[0].RestartCount
		}
	}
	return counts
}

// killDaemon kills allocnetd and waits until the kubelet has started it again.
func (n *node) killDaemon() {
	n.t.Helper()
	before := n.daemon()
	require.NotZero(n.t, before)
	require.NoError(n.t, syscall.Kill(before, syscall.SIGKILL))
	n.eventually("the kubelet starts allocnetd again", func() bool { now := n.daemon(); return now != 0 && now != before })
}

// daemon returns the process ID of allocnetd; 0 if it does not run.
func (n *node) daemon() int {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	require.NoError(n.t, err)
	for _, file := range names {
		if comm, err := os.ReadFile(file); err == nil && string(comm) == "allocnetd\n" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			require.NoError(n.t, err)
			return pid
		}
	}
	return 0
}

// rollOut replaces allocnetd as an upgrade does, while pods answer and one is replaced.
func (n *node) rollOut() {
	n.t.Helper()
	l := n.ask()
	n.do("-n", "kube-system", "rollout", "restart", "ds/allocnet")
	n.another()
	n.ready()
	l.require(n, "allocnetd is replaced")
}

// flushed flushes the rules of the host. allocnetd restores them.
func (n *node) flushed() {
	n.t.Helper()
	privhost.FlushRuleset(n.t)
	n.requirePeers()
	n.another()
}

// rebooted reboots the node. The pods come back, with networks that work.
func (n *node) rebooted() {
	n.t.Helper()
	n.reboot()
	n.ready()
	n.requireServed()
	n.requirePeers()
	n.another()
	require.Len(n.t, n.allocations(), pods)
}

// allocations returns the IDs of the allocations that the daemon knows.
func (n *node) allocations() []string {
	n.t.Helper()
	return strings.Fields(n.do("-n", "kube-system", "exec", "ds/allocnet", "--", "/usr/bin/allocnet", "ls", "--quiet"))
}

// removed removes the pods, and then allocnetd: nothing of theirs stays.
func (n *node) removed(documents string) {
	n.t.Helper()
	addresses := slices.Collect(maps.Values(n.requireServed()))
	_, err := n.kubectl(documents, "delete", "-f", "-")
	require.NoError(n.t, err)
	n.eventually("the pods are removed", func() bool { return len(n.list()) == 0 })
	require.Empty(n.t, n.allocations())
	n.do("-n", "kube-system", "delete", "ds/allocnet")
	n.eventually("allocnetd has ended", func() bool { return n.daemon() == 0 })

	namespaces, err := os.ReadDir("/run/netns")
	require.NoError(n.t, err)
	require.Len(n.t, namespaces, 1, "the external machine's")
	links, err := netlink.LinkList()
	require.NoError(n.t, err)
	for _, l := range links {
		require.True(n.t, l.Type() != "veth" || l.Attrs().Name == testhost.Wire, l.Attrs().Name)
	}
	for _, command := range []string{"nft list ruleset", "ip neighbour", "ip route", "find /run /var/lib/cni"} {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		require.NoError(n.t, err, "%s: %s", command, out)
		for _, p := range addresses {
			require.NotContains(n.t, string(out), p.Status.PodIP+" ", command)
			require.NotContains(n.t, string(out), p.Status.PodIP+"\n", command)
		}
	}
}
