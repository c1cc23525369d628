package packaging

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mounts are those of deploy/daemonset.yaml, as options of ctr.
var mounts = func() (options []string) {
	for _, dir := range []string{"/etc/cni/net.d", "/opt/cni/bin", "/opt/allocnet", "/run/allocnet", "/run/cni", "/var/lib/cni"} {
		options = append(options, "--mount", "type=bind,src="+dir+",dst="+dir+",options=rbind:rw")
	}
	for _, dir := range []string{"/run/netns", "/var/run/netns"} {
		options = append(options, "--mount", "type=bind,src=/run/netns,dst="+dir+",options=rbind:rshared:rw")
	}
	return options
}()

// TestImage imports the image into containerd, has it install the plugin on the
// host, runs the daemon as the DaemonSet does, and calls the plugin as a runtime
// does.
func TestImage(t *testing.T) {
	requirePackageTest(t)
	dist, err := built()
	require.NoError(t, err)
	m := boot(t)
	m.shell(`mkdir -p /var/lib/containerd /etc/cni/net.d /opt/cni/bin /opt/allocnet /run/allocnet /run/cni /run/netns /var/lib/cni
mount -t tmpfs tmpfs /var/lib/containerd
mount --bind /run/netns /run/netns
mount --make-shared /run/netns`)
	// Its cgroups may have no controllers, without which runc refuses limits.
	m.shell(`cat >/usr/local/bin/unlimited <<'END'
#!/bin/sh
for arg; do
	[ "$before" != --bundle ] || { jq '.linux.resources |= {devices}' "$arg/config.json" >"$arg/new" && mv "$arg/new" "$arg/config.json"; }
	before=$arg
done
exec runc "$@"
END
chmod 755 /usr/local/bin/unlimited`)
	m.run("systemctl", "start", "containerd.service")
	const image = "localhost/allocnet:" + testVersion
	m.run("ctr", "image", "import", "--all-platforms", m.put(filepath.Join(dist, "allocnet-"+testVersion+"-oci.tar")))
	require.Regexp(t, `(?m)^`+image+` .*linux/amd64,linux/arm64`, m.run("ctr", "image", "ls"))

	run := func(more ...string) []string {
		return append([]string{"ctr", "run", "--net-host", "--with-ns", "pid:/proc/1/ns/pid", "--privileged", "--runc-binary", "/usr/local/bin/unlimited"}, append(mounts, more...)...)
	}
	var v struct{ Version string }
	require.NoError(t, json.Unmarshal([]byte(m.run(run("--rm", image, "version", "/usr/bin/allocnetd", "version", "--json")...)), &v))
	require.Equal(t, "v"+testVersion, v.Version)
	for range 2 {
		m.run(run("--rm", image, "install", "/usr/bin/allocnet", "plugins", "install", "/opt/cni/bin", "loopback", "--keep", "--copy-to", "/opt/allocnet")...)
	}
	require.Contains(t, m.shell(`ls -l /opt/cni/bin`), "loopback -> /opt/allocnet/allocnet-plugins")

	m.run(run("--detach", "--env", "ALLOCNETD_MANAGER_ENABLED=true", image, "allocnetd", "/usr/bin/allocnetd", "run")...)
	m.shell(`cat >/etc/cni/net.d/10-web.conflist <<'END'
{"cniVersion": "1.1.0", "name": "web", "plugins": [{"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local",
 "dataDir": "/run/cni/networks", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END`)
	allocnet := func(args ...string) *exec.Cmd {
		return m.command(append([]string{"ctr", "task", "exec", "--exec-id", "probe", "allocnetd", "/usr/bin/allocnet"}, args...)...)
	}
	require.Eventually(t, func() bool { return allocnet("ready").Run() == nil }, time.Minute, 100*time.Millisecond, "%s", m.try("ctr", "task", "ls"))
	require.Eventually(t, func() bool { return m.command("test", "-e", "/etc/cni/net.d/00-allocnet.conflist").Run() == nil }, time.Minute, 100*time.Millisecond)
	require.NoError(t, allocnet("ls", "--quiet").Run())

	call := func(command string) string {
		t.Helper()
		return m.shell(`jq '.plugins[0] + {cniVersion, name}' /etc/cni/net.d/00-allocnet.conflist | CNI_COMMAND=` + command +
			` CNI_CONTAINERID=c1 CNI_IFNAME=eth0 CNI_NETNS=/var/run/netns/c1 CNI_PATH=/opt/cni/bin /opt/cni/bin/allocnet`)
	}
	m.run("ip", "netns", "add", "c1")
	require.Contains(t, call("ADD"), `10.88.0.2/16`)
	m.run("ping", "-c", "1", "-W", "10", "10.88.0.2")
	call("DEL")
	require.Eventually(t, func() bool { return !strings.Contains(m.run("ip", "-o", "link"), "veth") }, time.Minute, 10*time.Millisecond, "it is deleted after the answer")
	m.run("ctr", "task", "kill", "allocnetd")
	require.Eventually(t, func() bool { return strings.Contains(m.run("ctr", "task", "ls"), "STOPPED") }, time.Minute, 100*time.Millisecond)
}
