package kubernetes

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/ociimage"
	"github.com/allocnet/allocnet/internal/testing/pidns"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// programsVariable names the environment variable with the directory of the programs of Kubernetes, of containerd, and of a
// release of allocnet in its folder "release".
const programsVariable = "ALLOCNET_KUBERNETES"

// node is a host with a cluster of its own.
type node struct {
	t       testing.TB
	bin     string // directory of the programs
	dir     string // of files that a reboot keeps
	outside *sandbox.Sandbox

	etcd, apiserver, controllers, scheduler, containerd, kubelet *process.Process
}

// newNode returns a node that is not started yet.
func newNode(t testing.TB) *node {
	t.Helper()
	bin := os.Getenv(programsVariable)
	if bin == "" {
		skip.LeaveTo(t, "make kubernetes")
	}
	privhost.RequireRoot(t, "etcd", "runc", "busybox", "iptables", "nft")
	n := &node{t: t, bin: bin, dir: t.TempDir(), outside: testhost.Outside(t)}
	ownGroups(t)
	keepSysctls(t)
	// The kubelet passes mounts on to pods and sees theirs, as systemd prepares a host.
	require.NoError(t, unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""))
	t.Cleanup(func() { pidns.EndOthers(t); n.forget() })
	n.files(map[string]string{
		"tokens.csv":      "secret,admin,1,system:masters\n",
		"kubeconfig":      kubeconfig,
		"kubelet.yaml":    kubeletConfig,
		"containerd.toml": containerdConfig,
		"sa.key":          key(t),
	})
	n.etcd = process.New(t, "etcd", "--data-dir", "/var/lib/etcd/data")
	n.apiserver = n.program("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--allow-privileged",
		"--advertise-address="+testhost.Host4.Addr().String(), "--service-cluster-ip-range=10.96.0.0/16", "--cert-dir="+n.file("apiserver"),
		"--token-auth-file="+n.file("tokens.csv"), "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file="+n.file("sa.key"), "--service-account-signing-key-file="+n.file("sa.key"))
	n.controllers = n.program("kube-controller-manager", "--kubeconfig="+n.file("kubeconfig"), "--leader-elect=false",
		"--cert-dir="+n.file("controllers"), "--service-account-private-key-file="+n.file("sa.key"))
	n.scheduler = n.program("kube-scheduler", "--kubeconfig="+n.file("kubeconfig"), "--leader-elect=false", "--cert-dir="+n.file("scheduler"))
	n.containerd = n.program("containerd", "--config", n.file("containerd.toml"), "--log-level", "warn")
	n.containerd.Env = []string{"PATH=" + n.bin + ":" + os.Getenv("PATH")} // its shim
	n.kubelet = n.program("kubelet", "--config="+n.file("kubelet.yaml"), "--kubeconfig="+n.file("kubeconfig"), "--hostname-override=node",
		"--node-ip="+testhost.Host4.Addr().String(), "--root-dir=/var/lib/kubelet")
	return n
}

func (n *node) program(name string, args ...string) *process.Process {
	return process.New(n.t, append([]string{filepath.Join(n.bin, name)}, args...)...)
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

func (n *node) files(contents map[string]string) {
	for name, content := range contents {
		require.NoError(n.t, os.WriteFile(n.file(name), []byte(content), 0o600))
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// The disk of a developer may be fuller than the kubelet likes.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
nodeStatusUpdateFrequency: 1s
`

const containerdConfig = `version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + ociimage.Name + `"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
`

// key returns a new private key.
func key(t testing.TB) string {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)}))
}

// ownGroups mounts the hierarchies of control groups of the machine again, so that the groups of the tests are their roots.
func ownGroups(t testing.TB) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	require.NoError(t, unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=755")) // for version 1, whose controllers have a directory each
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		at, kind := fields[1], fields[2]
		if kind != "cgroup" && kind != "cgroup2" {
			continue
		}
		options := ""
		if kind == "cgroup" {
			options = strings.Join(strings.Split(fields[3], ",")[2:], ",") // without rw and relatime
		}
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, unix.Mount(kind, at, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options), line)
	}
}

// keepSysctls restores, at the end of the test, what the kubelet sets for the whole machine.
func keepSysctls(t testing.TB) {
	t.Helper()
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		path := "/proc/sys/" + name
		value, err := os.ReadFile(path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.WriteFile(path, value, 0)) })
	}
}

// start starts the programs, as the boot of a host does.
func (n *node) start() {
	n.t.Helper()
	n.etcd.Start()
	n.apiserver.Start()
	n.eventually("the API server is ready", func() bool { _, err := n.try("get", "--raw", "/readyz"); return err == nil })
	n.controllers.Start()
	n.scheduler.Start()
	n.startContainerd()
	n.kubelet.Start()
	n.eventually("the node is registered", func() bool { _, err := n.try("get", "node", "node"); return err == nil })
}

func (n *node) startContainerd() {
	n.t.Helper()
	n.containerd.Start()
	n.eventually("containerd responds", func() bool { return exec.Command(filepath.Join(n.bin, "ctr"), "version").Run() == nil })
}

// load imports the images of the pods and of allocnet.
func (n *node) load() {
	n.t.Helper()
	archives, err := filepath.Glob(filepath.Join(n.bin, "release", "allocnet-*-oci.tar"))
	require.NoError(n.t, err)
	require.Len(n.t, archives, 1)
	pods := n.file("image.tar")
	require.NoError(n.t, os.WriteFile(pods, ociimage.Archive(n.t), 0o600))
	for _, archive := range append(archives, pods) {
		n.run(filepath.Join(n.bin, "ctr"), "--namespace", "k8s.io", "images", "import", archive)
	}
}

// reboot ends everything that runs, forgets what a host forgets, and starts again.
func (n *node) reboot() {
	n.t.Helper()
	pidns.EndOthers(n.t)
	n.forget()
	n.start()
}

// forget removes what a reboot removes: mounts, /run, links, rules. The external machine stays.
func (n *node) forget() {
	n.t.Helper()
	const namespaces = "/run/netns"
	for _, dir := range []string{"/run", "/var/lib/kubelet", "/var/lib/containerd"} {
		pidns.UnmountBelow(n.t, dir, namespaces, n.outside.Path())
	}
	for _, dir := range []string{"/run", namespaces} {
		entries, err := os.ReadDir(dir)
		require.NoError(n.t, err)
		for _, e := range entries {
			if path := filepath.Join(dir, e.Name()); path != namespaces && path != n.outside.Path() {
				require.NoError(n.t, os.RemoveAll(path))
			}
		}
	}
	links, err := netlink.LinkList()
	require.NoError(n.t, err)
	for _, l := range links {
		if name := l.Attrs().Name; name != testhost.Wire && (l.Type() == "veth" || l.Type() == "bridge") {
			if err := netlink.LinkDel(l); err != nil {
				require.ErrorIs(n.t, err, unix.ENODEV)
			}
		}
	}
	privhost.FlushRuleset(n.t)
}

// try runs kubectl.
func (n *node) try(args ...string) (string, error) { return n.kubectl("", args...) }

func (n *node) kubectl(input string, args ...string) (string, error) {
	c := exec.Command(filepath.Join(n.bin, "kubectl"), append([]string{"--kubeconfig", n.file("kubeconfig")}, args...)...)
	c.Stdin = strings.NewReader(input)
	c.Env = append(os.Environ(), "HOME="+n.dir)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %q: %w: %s", args, err, stderr.String())
	}
	return string(out), err
}

// do runs kubectl, which must succeed.
func (n *node) do(args ...string) string {
	n.t.Helper()
	out, err := n.try(args...)
	require.NoError(n.t, err)
	return out
}

// apply applies documents.
func (n *node) apply(documents string) {
	n.t.Helper()
	_, err := n.kubectl(documents, "apply", "-f", "-")
	require.NoError(n.t, err)
}

func (n *node) run(command ...string) {
	n.t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	require.NoError(n.t, err, "%q: %s", command, out)
}

// eventually waits until a condition holds.
func (n *node) eventually(what string, is func() bool) {
	n.t.Helper()
	n.soon(what, func() error {
		if is() {
			return nil
		}
		return fmt.Errorf("not yet")
	})
}

// soon waits until a condition has no error.
func (n *node) soon(what string, condition func() error) {
	n.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := condition()
		if err == nil {
			return
		}
		require.True(n.t, time.Now().Before(deadline), "%s: %v", what, err)
	}
}
