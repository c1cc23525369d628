package ui

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
)

// host is a daemon with its own directories.
type host struct {
	*testing.T
	dir    string
	client *client.Client
	daemon *exec.Cmd
}

// newHost starts a daemon with further settings. All allocations are removed at the end.
func newHost(t *testing.T, settings ...string) *host {
	privhost.RequireRoot(t, "chromium")
	dir, err := os.MkdirTemp("", "ui")
	require.NoError(t, err)
	h := &host{T: t, dir: dir, client: client.New(client.Config{Socket: filepath.Join(dir, "s")})}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for _, name := range []string{"conf", "bin"} {
		require.NoError(t, os.Mkdir(h.path(name), 0o755))
	}
	h.write("conf/10-front.conflist", `{"cniVersion": "1.1.0", "name": "front", "plugins": [
		{"type": "bridge", "bridge": "front0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local",
		 "dataDir": "`+h.path("leases")+`", "ranges": [[{"subnet": "10.88.0.0/16"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`)
	h.write("d.hcl", strings.Join(append([]string{
		`socket { path = "` + h.path("s") + `" }`, `conf_dir = "` + h.path("conf") + `"`, `state_dir = "` + h.path("state") + `"`,
		`plugin_dirs = ["` + h.path("bin") + `"]`,
	}, settings...), "\n"))
	h.uplink()
	h.start()
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(h.path("log"))
			t.Logf("log of the daemon:\n%s", text)
		}
		for _, scope := range []string{"", "shop"} {
			_, err := h.client.GCScope(context.Background(), allocnet.Scope{Name: scope})
			require.NoError(t, err)
		}
		h.stop()
	})
	return h
}

// start starts the daemon, and waits until it is ready.
func (h *host) start() {
	h.Helper()
	log, err := os.OpenFile(h.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(h, err)
	defer log.Close()
	h.daemon = exec.Command(filepath.Join(programs, "allocnetd"), "--config", h.path("d.hcl"))
	h.daemon.Stderr = log
	require.NoError(h, h.daemon.Start())
	require.Eventually(h, func() bool { return h.client.Ready(h.Context()) == nil }, time.Minute, 10*time.Millisecond)
}

// stop ends the daemon.
func (h *host) stop() {
	h.Helper()
	require.NoError(h, h.daemon.Process.Signal(os.Interrupt))
	require.NoError(h, h.daemon.Wait())
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

func (h *host) write(name, text string) {
	h.Helper()
	require.NoError(h, os.WriteFile(h.path(name), []byte(text), 0o600))
}

// uplink gives the host a default route.
func (h *host) uplink() {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink0"}, PeerName: "uplink1"}
	require.NoError(h, netlink.LinkAdd(link))
	h.Cleanup(func() { require.NoError(h, netlink.LinkDel(link)) })
	address, err := netlink.ParseAddr("192.0.2.10/24")
	require.NoError(h, err)
	require.NoError(h, netlink.AddrAdd(link, address))
	for _, name := range []string{"lo", "uplink0", "uplink1"} {
		up, err := netlink.LinkByName(name)
		require.NoError(h, err)
		require.NoError(h, netlink.LinkSetUp(up))
	}
	require.NoError(h, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Gw: net.ParseIP("192.0.2.1")}))
}

// setup sets an allocation up in a namespace of its own.
func (h *host) setup(a allocnet.Allocation) *allocnet.Status {
	h.Helper()
	a.OwnNetns = true
	status, err := h.client.Setup(h.Context(), a)
	require.NoError(h, err)
	return status
}

// setupMany sets many allocations up, several at a time.
func (h *host) setupMany(n int) {
	h.Helper()
	var running sync.WaitGroup
	slots := make(chan struct{}, 8)
	failed := make(chan error, n)
	for i := range n {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			a := allocnet.Allocation{ID: fmt.Sprintf("task-%04d", i), OwnNetns: true, Networks: []string{"allocnet"}}
			if i%10 == 0 {
				a.Ports = []portmap.Port{{Label: "http", Value: 20000 + i, To: 80, Protocols: []string{"tcp"}}}
			}
			if _, err := h.client.Setup(h.Context(), a); err != nil {
				failed <- err
			}
		})
	}
	running.Wait()
	close(failed)
	for err := range failed {
		require.NoError(h, err)
	}
}

func (h *host) teardown(id string) {
	h.Helper()
	require.NoError(h, h.client.Teardown(h.Context(), allocnet.Allocation{ID: id, OwnNetns: true}))
}

// serve runs allocnet ui and returns the URL that it prints.
func (h *host) serve(flags ...string) string {
	h.Helper()
	c := exec.Command(filepath.Join(programs, "allocnet"), append([]string{"ui", "--socket", h.path("s")}, flags...)...)
	out, err := c.StdoutPipe()
	require.NoError(h, err)
	require.NoError(h, c.Start())
	h.Cleanup(func() {
		require.NoError(h, c.Process.Signal(os.Interrupt))
		require.NoError(h, c.Wait())
	})
	lines := bufio.NewScanner(out)
	require.True(h, lines.Scan(), "it prints the URL")
	return lines.Text()
}
