package trace

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

const conflist = `{"cniVersion":"1.0.0","name":"net","plugins":[
	{MAIN,"ipMasq":true,"ipam":{"type":"host-local","dataDir":"DATA","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
	{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}]}`

var mains = map[string]string{"bridge": `"type":"bridge","bridge":"brtest","isGateway":true`, "ptp": `"type":"ptp"`}

// host is a private host with an allocation "web" that serves TCP port 80.
type host struct {
	*testing.T
	*configurator.Configurator
	listener net.Listener
	link     string // on the host
}

func newHost(t *testing.T, main string) *host {
	privhost.Require(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.conflist"), []byte(strings.NewReplacer("MAIN", mains[main], "DATA", dir+"/leases").Replace(conflist)), 0o600))
	c, err := configurator.New(configurator.Config{ConfDir: dir, StateDir: filepath.Join(dir, "state"), Engine: configurator.EngineNative, Network: "net"})
	require.NoError(t, err)
	h := &host{T: t, Configurator: c}
	a := configurator.Allocation{ID: "web", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp", "udp"}}}}
	s, err := c.Setup(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Wait = true
		require.NoError(t, c.Teardown(context.WithoutCancel(t.Context()), a))
		require.NoError(t, c.Close())
		require.NoError(t, exec.Command("nft", "flush", "ruleset").Run())
		for _, link := range []string{"brtest", "other"} {
			_ = exec.Command("ip", "link", "del", link).Run() // not every test has it
		}
	})
	for _, itf := range s.Interfaces {
		if itf.Sandbox == "" {
			h.link = itf.Name // the veth is the last one
		}
	}
	h.serve(":80")
	return h
}

// serve makes the allocation listen on an address.
func (h *host) serve(at string) {
	h.Helper()
	if h.listener != nil {
		require.NoError(h, h.listener.Close())
	}
	s, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, "web"))
	require.NoError(h, err)
	defer s.Close()
	require.NoError(h, s.Do(func() (err error) {
		h.listener, err = net.Listen("tcp", at)
		return err
	}))
	h.Cleanup(func() { _ = h.listener.Close() })
}

func (h *host) run(command string) {
	h.Helper()
	words := strings.Fields(strings.NewReplacer("LINK", h.link).Replace(command))
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(h, err, "%s: %s", command, out)
}

// follow follows TCP over one family.
func (h *host) follow(ipv4 bool) *Path {
	h.Helper()
	r, err := h.Get(h.Context(), "web")
	require.NoError(h, err)
	for _, t := range Targets(r, netip.Addr{}) {
		if t.Mapping.Protocol == "tcp" && t.Address.Is4() == ipv4 {
			p, err := Follow(h.Context(), t)
			require.NoError(h, err)
			return p
		}
	}
	require.Fail(h, "no such target")
	return nil
}

func failed(p *Path) (name, found string) {
	for _, s := range p.Steps {
		if s.State == Failed {
			return s.Name, s.Found
		}
	}
	return "", ""
}

// TestWhole: a port that works is followed to the process, over both families.
func TestWhole(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, main)
			for _, ipv4 := range []bool{true, false} {
				p := h.follow(ipv4)
				require.True(t, p.Reached, "%+v", p.Steps)
				var names []string
				for _, s := range p.Steps {
					require.Equal(t, OK, s.State, "%+v", s)
					if len(names) == 0 || names[len(names)-1] != s.Name {
						names = append(names, s.Name)
					}
				}
				require.Equal(t, []string{"host port", "route", "link", "interface inside", "listener inside", "way back", "probe"}, names)
				require.Equal(t, uint16(80), p.To.Port())
			}
			r, err := h.Get(t.Context(), "web")
			require.NoError(t, err)
			require.Len(t, Targets(r, netip.Addr{}), 4, "two protocols, two families")
			require.Len(t, Targets(r, netip.MustParseAddr("192.0.2.1")), 2)
		})
	}
}

// TestBroken breaks one thing at a time, and sees it named.
func TestBroken(t *testing.T) {
	for name, test := range map[string]struct {
		main        string
		before      func(*host)
		step, found string
	}{
		"tables flushed": {"bridge", func(h *host) { h.run("nft flush ruleset") }, "host port", "do not have tcp port 8080"},
		"element deleted": {"ptp", func(h *host) { h.run("nft flush map ip allocnet host_ports") }, "host port",
			"do not have tcp port 8080"},
		"route gone": {"ptp", func(h *host) { h.run("ip route del 10.77.0.2") }, "route", "no route to 10.77.0.2"},
		"routed elsewhere": {"bridge", func(h *host) {
			h.run("ip link add other type bridge")
			h.run("ip link set other up")
			h.run("ip route add 10.77.0.2 dev other")
		}, "route", "over other"},
		"link down":           {"bridge", func(h *host) { h.run("ip link set LINK down") }, "link", "is down"},
		"other end down":      {"bridge", func(h *host) { h.run("ip -n web link set eth0 down") }, "link", "no carrier"},
		"address gone":        {"bridge", func(h *host) { h.run("ip -n web -4 address flush dev eth0") }, "interface inside", "has 10.77.0.2"},
		"nothing listens":     {"ptp", func(h *host) { require.NoError(h, h.listener.Close()) }, "listener inside", "nothing listens on tcp port 80"},
		"listens on loopback": {"bridge", func(h *host) { h.serve("127.0.0.1:80") }, "listener inside", "nothing listens on tcp port 80 for 10.77.0.2"},
		"dropped by others": {"bridge", func(h *host) {
			h.run("nft add table ip strict")
			h.run("nft add chain ip strict out { type filter hook output priority 0 ; }")
			h.run("nft add rule ip strict out ip daddr 10.77.0.2 drop")
		}, "probe", "fails"},
		"namespace unmounted": {"bridge", func(h *host) { h.run("umount /run/netns/web") }, "namespace", "/run/netns/web"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, test.main)
			test.before(h)
			p := h.follow(true)
			require.False(t, p.Reached)
			step, found := failed(p)
			require.Equal(t, test.step, step, "%+v", p.Steps)
			require.Contains(t, found, test.found)
			require.NotEmpty(t, p.Steps[len(p.Steps)-1].Next)
			require.Equal(t, Failed, p.Steps[len(p.Steps)-1].State, "nothing is followed further")
		})
	}
}

// TestProcessOfTheHost: a process of the host on the same port is noted.
func TestProcessOfTheHost(t *testing.T) {
	h := newHost(t, "bridge")
	l, err := net.Listen("tcp4", ":8080")
	require.NoError(t, err)
	defer l.Close()
	p := h.follow(true)
	require.True(t, p.Reached)
	require.Equal(t, Note, p.Steps[1].State)
	require.Regexp(t, `^\S+ \(process \d+\) listens on 0\.0\.0\.0:8080$`, p.Steps[1].Found)
}
