package trace

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	brokenTime = 10 * time.Millisecond // nothing depends on it
	os.Exit(privhost.Main(m))
}

const conflist = `{"cniVersion":"1.0.0","name":"net","plugins":[
	{MAIN,"ipMasq":true,"ipam":{"type":"host-local","dataDir":"DATA","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
	{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}MORE]}`

var mains = map[string]string{"bridge": `"type":"bridge","bridge":"brtest","isGateway":true`, "ptp": `"type":"ptp"`}

// host is a private host with an allocation "web" that serves port 80, and an uplink "up0"
// with the default routes.
type host struct {
	*testing.T
	*configurator.Configurator
	servers []io.Closer
	link    string // on the host
}

// hostUp is a batch of the program ip.
const hostUp = `link add up0 type veth peer name up1
link set up0 up
link set up1 up
addr add 172.16.5.1/24 dev up0
addr add fd00:5::1/64 dev up0 nodad
route add default via 172.16.5.9
route add ::/0 via fd00:5::9
`

// The clients are another host.
var clients = map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.7"), false: netip.MustParseAddr("2001:db8::7")}

func newHost(t *testing.T, main string) *host { return newHostOf(t, main, configurator.EngineNative) }

// newHostOf returns a host whose network has more plugins at the end of its chain.
func newHostOf(t *testing.T, main string, engine configurator.Engine, more ...string) *host {
	privhost.Require(t, "nft", "ip", "iptables-legacy")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.conflist"), []byte(strings.NewReplacer("MAIN", mains[main], "DATA", dir+"/leases", "MORE", strings.Join(append([]string{""}, more...), ",")).Replace(conflist)), 0o600))
	config := configurator.Config{ConfDir: dir, StateDir: filepath.Join(dir, "state"), Engine: engine, Network: "net"}
	if engine == configurator.EngineExec {
		plugins, err := refplugins.Dir()
		require.NoError(t, err)
		config.PluginDirs = []string{plugins}
	}
	c, err := configurator.New(config)
	require.NoError(t, err)
	h := &host{T: t, Configurator: c}
	up := exec.Command("ip", "-batch", "-")
	up.Stdin = strings.NewReader(hostUp)
	out, err := up.CombinedOutput()
	require.NoError(t, err, "%s", out)
	a := configurator.Allocation{ID: "web", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp", "udp"}}}}
	s, err := c.Setup(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() {
		h.silence()
		a.Wait = true
		require.NoError(t, c.Teardown(context.WithoutCancel(t.Context()), a))
		require.NoError(t, c.Close())
		rules, err := nftables.New()
		require.NoError(t, err)
		rules.FlushRuleset()
		require.NoError(t, rules.Flush())
		for _, name := range []string{"brtest", "other", "up0"} {
			if link, err := netlink.LinkByName(name); err == nil { // not every test has it
				require.NoError(t, netlink.LinkDel(link))
			}
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

// serve makes the allocation listen on addresses, over TCP and UDP.
func (h *host) serve(at ...string) {
	h.Helper()
	h.silence()
	s, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, "web"))
	require.NoError(h, err)
	defer s.Close()
	require.NoError(h, s.Do(func() error {
		for _, at := range at {
			l, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			u, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			h.servers = append(h.servers, l, u)
		}
		return nil
	}))
}

// serveFull makes the allocation listen, with a queue of connections that is full.
func (h *host) serveFull() {
	h.silence()
	s, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, "web"))
	require.NoError(h, err)
	defer s.Close()
	require.NoError(h, s.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		h.servers = append(h.servers, os.NewFile(uintptr(fd), "listener"))
		if err := unix.Bind(fd, &unix.SockaddrInet6{Port: 80}); err != nil {
			return err
		}
		return unix.Listen(fd, 0) // room for one connection
	}))
	c, err := net.Dial("tcp", "10.77.0.2:80")
	require.NoError(h, err)
	h.servers = append(h.servers, c)
}

func (h *host) silence() {
	for _, s := range h.servers {
		require.NoError(h, s.Close())
	}
	h.servers = nil
}

// run runs commands, one per line.
func (h *host) run(commands string) {
	h.Helper()
	for command := range strings.Lines(strings.ReplaceAll(commands, "LINK", h.link)) {
		words := strings.Fields(command)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(h, err, "%s: %s", command, out)
	}
}

// runWith runs commands in which a value takes the place of a name.
func (h *host) runWith(name, value, commands string) {
	h.Helper()
	h.run(strings.ReplaceAll(commands, name, value))
}

// follow follows a protocol over one family, from another host if remote.
func (h *host) follow(protocol string, ipv4, remote bool, link string) *Path {
	h.Helper()
	r, err := h.Get(h.Context(), "web")
	require.NoError(h, err)
	var from netip.Addr
	if remote {
		from = clients[ipv4]
	}
	for _, t := range Targets(r, from) {
		if t.Mapping.Protocol == protocol && t.Address.Is4() == ipv4 {
			t.Link = link
			p, err := Follow(h.Context(), t)
			require.NoError(h, err)
			return p
		}
	}
	require.Fail(h, "no such target")
	return nil
}

// objects lists the tables, links and tracked connections of the host.
func (h *host) objects() string {
	h.Helper()
	rules, err := nftables.New()
	require.NoError(h, err)
	list, err := rules.ListTables()
	require.NoError(h, err)
	var tables []string
	for _, table := range list {
		tables = append(tables, fmt.Sprint(table.Family, table.Name))
	}
	links, err := net.Interfaces()
	require.NoError(h, err)
	var names []string
	for _, link := range links {
		names = append(names, link.Name)
	}
	tracked, err := os.ReadFile("/proc/net/nf_conntrack")
	require.NoError(h, err)
	var inside []byte
	if s, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, "web")); err == nil { // otherwise, the namespace is gone
		defer s.Close()
		require.NoError(h, s.Do(func() (err error) {
			inside, err = exec.Command("nft", "list", "ruleset").CombinedOutput()
			return err
		}))
	}
	return strings.Join(tables, " ") + strings.Join(names, " ") + strings.Join(ofProbes(string(tracked)), "\n") + string(inside)
}

// ofProbes returns the entries for the host port.
func ofProbes(tracked string) (lines []string) {
	for line := range strings.Lines(tracked) {
		if strings.Contains(line, "dport=8080") {
			lines = append(lines, line)
		}
	}
	return lines
}

func failed(p *Path) Step {
	for _, s := range p.Steps {
		if s.State == Failed {
			return s
		}
	}
	return Step{}
}

// received waits for a connection or a datagram.
func received(server io.Closer) (err error) {
	switch s := server.(type) {
	case net.Listener:
		_, err = s.Accept()
	case net.PacketConn:
		_, _, err = s.ReadFrom(make([]byte, 64))
	}
	return err
}

// each calls a function for each protocol and family.
func each(do func(protocol string, ipv4 bool)) {
	for _, protocol := range []string{"tcp", "udp"} {
		for _, ipv4 := range []bool{true, false} {
			do(protocol, ipv4)
		}
	}
}

// inShort reports whether a test with the given name has a protocol and family with -short: each protocol over one
// family, the other way round in half of the tests.
func inShort(name, protocol string, ipv4 bool) bool {
	return !testing.Short() || (protocol == "tcp") == ipv4 == (crc32.ChecksumIEEE([]byte(name))%2 == 0)
}

// TestWhole: a port that works is followed to the process, from the host and from another
// host. No process gets anything.
func TestWhole(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, main)
			before := h.objects()
			each(func(protocol string, ipv4 bool) {
				for _, remote := range []bool{false, true} {
					p := h.follow(protocol, ipv4, remote, "")
					require.True(t, p.Reached, "%+v", p.Steps)
					var names []string
					for _, s := range p.Steps {
						require.Equal(t, OK, s.State, "%+v", s)
						if len(names) == 0 || names[len(names)-1] != s.Name {
							names = append(names, s.Name)
						}
					}
					require.Equal(t, uint16(80), p.To.Port())
					for _, name := range []string{"host port", "probe", "route", "conntrack", "link", "interface inside", "listener inside", "answer"} {
						require.Contains(t, names, name)
					}
					if remote {
						require.Equal(t, "up0", p.Link)
						require.Equal(t, clients[ipv4], p.From.Addr())
						require.Contains(t, names, "prerouting")
						require.Contains(t, names, "forward")
						require.Contains(t, names, "way back")
					} else {
						require.Empty(t, p.Link)
						require.Contains(t, names, "output")
					}
				}
			})
			require.Equal(t, before, h.objects(), "a probe left something")
			for _, s := range h.servers {
				require.NoError(t, s.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now()))
				require.ErrorIs(t, received(s), os.ErrDeadlineExceeded, "a probe reached the process")
			}
			r, err := h.Get(t.Context(), "web")
			require.NoError(t, err)
			require.Len(t, Targets(r, netip.Addr{}), 4, "two protocols, two families")
			require.Len(t, Targets(r, netip.MustParseAddr("192.0.2.1")), 2)
		})
	}
}

// broken is a path that does not lead to the process.
type broken struct {
	main     string
	commands string
	undo     string // commands; "" if the host is not used again
	before   func(*host)
	remote   bool
	link     string // on which packets of the other host arrive
	only     string // one protocol or family
	lost     bool   // the kernel tells nothing, so that the probe is awaited
	step     string
	found    string
}

// TestBroken breaks one object at a time, and sees it named, for TCP and UDP over IPv4 and
// IPv6.
func TestBroken(t *testing.T) {
	for name, test := range objectsBroken {
		t.Run(name, func(t *testing.T) { test.run(newHost(t, test.main)) })
	}
}

func (test *broken) run(h *host) {
	if test.lost {
		defer func(before time.Duration) { probeTime = before }(probeTime)
		probeTime = brokenTime
	}
	h.Helper()
	h.run(test.commands)
	if test.before != nil {
		test.before(h)
	}
	before := h.objects()
	each(func(protocol string, ipv4 bool) {
		if test.only != "" && test.only != protocol && test.only != map[bool]string{true: "ipv4", false: "ipv6"}[ipv4] {
			return
		}
		if !inShort(h.Name(), protocol, ipv4) {
			return
		}
		p := h.follow(protocol, ipv4, test.remote, test.link)
		address := map[bool]string{true: "10.77.0.2", false: "fd00:77::2"}[ipv4]
		s := failed(p)
		require.False(h, p.Reached, "%+v", p.Steps)
		require.Equal(h, test.step, s.Name, "%s: %+v", protocol, p.Steps)
		require.Contains(h, s.Found, strings.NewReplacer("ADDRESS", address, "PROTOCOL", protocol).Replace(test.found))
		require.NotEmpty(h, s.Next)
		require.Equal(h, Failed, p.Steps[len(p.Steps)-1].State, "nothing is followed further")
	})
	require.Equal(h, before, h.objects(), "a probe left something")
	h.run(test.undo)
}

var objectsBroken = map[string]broken{
	"tables flushed":  {main: "bridge", commands: "nft flush ruleset", step: "host port", found: "do not have PROTOCOL port 8080"},
	"element deleted": {main: "ptp", commands: "nft flush map ip allocnet host_ports\nnft flush map ip6 allocnet host_ports", step: "host port", found: "do not have PROTOCOL port 8080"},
	"route gone":      {main: "ptp", commands: "ip route del 10.77.0.2\nip -6 route del fd00:77::2\nip route del default\nip -6 route del default", step: "route", found: "no route to ADDRESS"},
	"blackhole":       {main: "bridge", commands: "ip route add blackhole 10.77.0.2\nip -6 route add blackhole fd00:77::2", undo: "ip route del blackhole 10.77.0.2\nip -6 route del blackhole fd00:77::2", step: "route", found: "a route of the host refuses packets to ADDRESS"},
	"routed elsewhere": {main: "bridge", commands: `ip link add other type bridge
ip link set other up
ip route add 10.77.0.2 dev other
ip -6 route add fd00:77::2 dev other`, step: "route", found: "over other"},
	"route to the network gone": {main: "ptp", commands: "ip route del 10.77.0.2\nip -6 route del fd00:77::2", step: "route", found: "no route to ADDRESS: packets leave over up0"},
	"link gone":                 {main: "ptp", commands: "ip link del LINK", step: "link", found: "is gone, and its routes with it"},
	"bridge gone":               {main: "bridge", commands: "ip link del brtest", step: "link", found: "brtest is gone"},
	"link down":                 {main: "bridge", commands: "ip link set LINK down", step: "link", found: "is down"},
	"other end down":            {main: "bridge", commands: "ip -n web link set eth0 down", step: "link", found: "no carrier"},
	"address gone":              {main: "bridge", commands: "ip -n web address flush dev eth0", step: "interface inside", found: "has ADDRESS"},
	"nothing listens": {main: "ptp", before: (*host).silence, step: "listener inside",
		found: "nothing listens on PROTOCOL port 80"},
	"listens on loopback": {main: "bridge", before: func(h *host) { h.serve("127.0.0.1:80", "[::1]:80") }, step: "listener inside",
		found: "nothing listens on PROTOCOL port 80 for ADDRESS"},
	"queue of connections full": {main: "bridge", before: (*host).serveFull, only: "tcp", lost: true, step: "answer", found: "the namespace does not answer"},
	"namespace unmounted":       {main: "bridge", commands: "umount /run/netns/web", step: "namespace", found: "/run/netns/web"},
}

// TestPluginBinaries: rules of plugin binaries are those of another program, which the probe
// meets.
func TestPluginBinaries(t *testing.T) {
	h := newHostOf(t, "bridge", configurator.EngineExec)
	each(func(protocol string, ipv4 bool) {
		p := h.follow(protocol, ipv4, true, "")
		require.True(t, p.Reached, "%+v", p.Steps)
		require.Equal(t, Note, p.Steps[0].State)
		family := map[bool]string{true: "ip", false: "ip6"}[ipv4]
		require.Contains(t, fmt.Sprint(p.Steps), family+" nat PREROUTING (the reference plugins): accept by rule ")
	})
}
