package native_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// bridged returns a bridge plugin with addresses.
func (h *testHost) bridged(bridge, subnet string) object {
	return object{"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true,
		"ipam": object{"type": "host-local", "subnet": subnet, "dataDir": h.dir + "/leases"}}
}

// another returns a request for another container.
func (h *testHost) another(id string, r *engine.Request) *engine.Request {
	h.t.Helper()
	s, err := sandbox.Create(id)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, s.Destroy()) })
	other := *r
	other.ID, other.Netns, other.Attachments = id, s.Path(), slices.Clone(r.Attachments)
	return &other
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, args, out)
	return string(out)
}

func within(t testing.TB, netns string, act func() error) {
	t.Helper()
	s, err := sandbox.Open(netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(act))
}

// packets opens a packet socket on eth0 in the namespace of the thread.
func packets() (fd int, link *net.Interface, err error) { return packetsOn("eth0") }

func packetsOn(name string) (fd int, link *net.Interface, err error) {
	if link, err = net.InterfaceByName(name); err != nil {
		return -1, nil, err
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
		return -1, nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, link, nil
}

func datagram(to, from net.HardwareAddr, source netip.Addr, text string) []byte {
	h := slices.Concat([]byte{0x45, 0, 0, byte(28 + len(text)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, source.AsSlice(), []byte{10, 77, 0, 1})
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum+sum>>16))
	return slices.Concat(to, from, []byte{8, 0}, h, []byte{0x30, 0x39, 0x1b, 0x9e, 0, byte(8 + len(text)), 0, 0}, []byte(text))
}

var broadcast = net.HardwareAddr{255, 255, 255, 255, 255, 255}

// flood sends frames with the source of a neighbour from a namespace, as soon and as long as
// it has an interface, until stop is called.
func flood(t testing.TB, netns string, neighbour netip.Addr) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		s, err := sandbox.Open(netns)
		if err != nil {
			return
		}
		defer s.Close()
		_ = s.Do(func() error {
			for {
				select {
				case <-done:
					return nil
				default:
				}
				fd, link, err := packets() // of which a plugin may change the MAC
				if err != nil {
					continue
				}
				for range 10 {
					_, _ = unix.Write(fd, datagram(broadcast, net.HardwareAddr{2, 0xbb, 0, 0, 0, 7}, neighbour, "FORGED"))
					_, _ = unix.Write(fd, datagram(broadcast, link.HardwareAddr, neighbour, "FORGED"))
				}
				unix.Close(fd)
			}
		})
	})
	return sync.OnceFunc(func() { close(done); running.Wait() })
}

// witness receives the frames of a bridge in a container.
type witness struct {
	t  testing.TB
	fd int
}

func newWitness(t testing.TB, netns string) *witness {
	t.Helper()
	w := &witness{t: t}
	within(t, netns, func() (err error) {
		w.fd, _, err = packets()
		return err
	})
	t.Cleanup(func() { unix.Close(w.fd) })
	require.NoError(t, unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	require.NoError(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	return w
}

// seen returns whether forged frames arrived before a frame with a text.
func (w *witness) seen(text string) (forged bool) {
	w.t.Helper()
	buf := make([]byte, 2000)
	for {
		n, err := unix.Read(w.fd, buf)
		require.NoError(w.t, err)
		if bytes.HasSuffix(buf[:n], []byte(text)) {
			return forged
		}
		forged = forged || bytes.HasSuffix(buf[:n], []byte("FORGED"))
	}
}

// drain returns whether forged frames are in the socket's buffer, and empties it: what arrives at a full
// buffer is lost.
func (w *witness) drain() (forged bool) {
	w.t.Helper()
	buf := make([]byte, 2000)
	for {
		n, _, err := unix.Recvfrom(w.fd, buf, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return forged
		}
		if !errors.Is(err, unix.EINTR) {
			require.NoError(w.t, err)
			forged = forged || bytes.HasSuffix(buf[:n], []byte("FORGED"))
		}
	}
}

// say sends a frame from a container's own address to all others.
func say(t testing.TB, netns string, source netip.Addr, text string) {
	t.Helper()
	tell(t, netns, broadcast, source, text)
}

// tell sends a frame from a container's own address to one MAC.
func tell(t testing.TB, netns string, to net.HardwareAddr, source netip.Addr, text string) {
	t.Helper()
	within(t, netns, func() error {
		fd, link, err := packets()
		require.NoError(t, err)
		defer unix.Close(fd)
		_, err = unix.Write(fd, datagram(to, link.HardwareAddr, source, text))
		return err
	})
}

// macOf returns the MAC of a container.
func macOf(t testing.TB, r *engine.Request) net.HardwareAddr {
	t.Helper()
	list := r.Attachments[0].Result.Interfaces
	i := slices.IndexFunc(list, func(one *types100.Interface) bool { return one.Sandbox != "" })
	mac, err := net.ParseMAC(list[i].Mac)
	require.NoError(t, err)
	return mac
}

func addressOf(r *engine.Request, i int) netip.Addr {
	addr, _ := netip.AddrFromSlice(r.Attachments[i].Result.IPs[0].Address.IP)
	return addr.Unmap()
}

func portTable(t testing.TB) string { return run(t, "nft", "list", "table", "bridge", "allocnet") }

// TestGuardFromTheFirstFrame: a container that sends before ADD has begun, and until DEL has
// ended, sends nothing in the name of a neighbour. Without the guard it does.
func TestGuardFromTheFirstFrame(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	for _, guarded := range []bool{true, false} {
		t.Run(fmt.Sprint("guarded ", guarded), func(t *testing.T) {
			h.t = t
			h.floodedLife(with(h.bridged("br0", "10.77.0.0/24"), "sourceGuard", guarded), guarded)
		})
	}
}

// floodedLife adds and removes a container that floods, and lets others look at what arrives.
func (h *testHost) floodedLife(conf object, guarded bool) {
	t := h.t
	r := h.request(network(t, "net", "1.0.0", nil, conf, object{"type": "firewall"}, object{"type": "tuning", "mac": "02:aa:00:00:00:09"}))
	neighbour, speaker := h.another("neighbour", h.request(network(t, "net", "1.0.0", nil, conf))), h.another("speaker", h.request(network(t, "net", "1.0.0", nil, conf)))
	h.add(neighbour)
	h.add(speaker)
	w := newWitness(t, neighbour.Netns)
	hit := regexp.MustCompile(`ether type ip counter packets [1-9]\d* bytes \d+ drop`)
	forged := false
	for round := range 10 {
		stop := flood(t, r.Netns, addressOf(neighbour, 0))
		h.add(r)
		require.NoError(t, h.Check(t.Context(), r))
		if guarded {
			require.Eventually(t, func() bool { return hit.MatchString(portTable(t)) }, 10*time.Second, time.Millisecond)
			say(t, r.Netns, addressOf(r, 0), "own")
			forged = w.seen("own") || forged
		} else {
			require.Eventually(t, w.drain, 10*time.Second, time.Millisecond)
			forged = true
		}
		if round%2 == 0 {
			require.NoError(t, h.Disconnect(t.Context(), r))
		}
		require.NoError(t, h.Del(t.Context(), r))
		stop()
		forged = w.drain() || forged
		text := fmt.Sprint("after ", round)
		say(t, speaker.Netns, addressOf(speaker, 0), text)
		forged = w.seen(text) || forged
		if !guarded {
			break
		}
	}
	require.Equal(t, !guarded, forged)
	for _, one := range []*engine.Request{neighbour, speaker} {
		require.NoError(t, h.Del(t.Context(), one))
	}
	require.NotContains(t, portTable(t), `comment "allocnet:`)
}

// TestDisconnectedPort: a guarded port without elements passes no frame from its container and none
// to its MAC. Disconnect takes every other port down.
func TestDisconnectedPort(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "ip", "nft")
	for name, c := range map[string]struct {
		guard bool
		group string
		up    bool
	}{
		"guarded":                   {guard: true, up: true},
		"moved out of the group":    {guard: true, group: "0"},
		"moved to a group of links": {guard: true, group: fmt.Sprint(names.GuardedGroup)},
		"without the table":         {guard: true, group: "flush", up: true},
		"without the guard":         {},
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			conf := with(h.bridged("br0", "10.77.0.0/24"), "sourceGuard", c.guard)
			r := h.request(network(t, "net", "1.0.0", nil, conf))
			unguarded := h.request(network(t, "net", "1.0.0", nil, with(conf, "sourceGuard", false)))
			neighbour, speaker := h.another("neighbour", unguarded), h.another("speaker", unguarded)
			for _, one := range []*engine.Request{r, neighbour, speaker} {
				h.add(one)
			}
			veth, mac := r.Attachments[0].Result.Interfaces[1].Name, macOf(t, r)
			there, here := newWitness(t, neighbour.Netns), newWitness(t, r.Netns)
			exchange := func(text string) (sent, received bool) {
				t.Helper()
				say(t, r.Netns, addressOf(r, 0), "FORGED")
				say(t, speaker.Netns, addressOf(speaker, 0), text)
				sent = there.seen(text)
				tell(t, neighbour.Netns, mac, addressOf(neighbour, 0), "FORGED")
				say(t, neighbour.Netns, addressOf(neighbour, 0), "to r "+text)
				return sent, here.seen("to r " + text)
			}
			sent, received := exchange("before")
			require.True(t, sent)
			require.True(t, received)
			switch c.group {
			case "":
			case "flush":
				run(t, "nft", "delete", "table", "bridge", "allocnet")
			default:
				run(t, "ip", "link", "set", "dev", veth, "group", c.group)
			}
			require.NoError(t, h.Disconnect(t.Context(), r))
			require.Equal(t, c.up, strings.Contains(run(t, "ip", "link", "show", "dev", veth), ",UP"))
			if c.up {
				sent, received = exchange("after")
				require.False(t, sent)
				require.False(t, received)
			}
			for _, one := range []*engine.Request{r, neighbour, speaker} {
				require.NoError(t, h.Del(t.Context(), one))
			}
		})
	}
}

// TestDisconnectedLink: Disconnect takes a routed link down.
func TestDisconnectedLink(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "ip")
	r := h.request(network(t, "net", "1.0.0", nil, object{"type": "ptp", "ipam": object{"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": h.dir + "/leases"}}))
	h.add(r)
	veth := r.Attachments[0].Result.Interfaces[0].Name
	require.Contains(t, run(t, "ip", "link", "show", "dev", veth), ",UP")
	require.NoError(t, h.Disconnect(t.Context(), r))
	require.NotContains(t, run(t, "ip", "link", "show", "dev", veth), ",UP")
	require.NoError(t, h.Del(t.Context(), r))
}

// TestGuardAfterFlush: while a process holds the guard, frames of guarded ports are dropped
// after a flush of the ruleset, until Restore. Others pass.
func TestGuardAfterFlush(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	h.Engine = native.New(hclog.NewNullLogger(), h.dir+"/state").LongLived(true)
	defer func() { require.NoError(t, h.Close()) }()
	conf := h.bridged("br0", "10.77.0.0/24")
	r := h.request(network(t, "net", "1.0.0", nil, conf))
	// A guarded port would receive nothing, either.
	unguarded := h.request(network(t, "net", "1.0.0", nil, with(conf, "sourceGuard", false)))
	neighbour, open := h.another("neighbour", unguarded), h.another("open", unguarded)
	all := []*engine.Request{r, neighbour, open}
	for _, one := range all {
		h.add(one)
	}
	w := newWitness(t, neighbour.Netns)
	exchange := func(text string) (own bool) {
		say(t, r.Netns, addressOf(neighbour, 0), "FORGED")
		say(t, r.Netns, addressOf(r, 0), "FORGED") // its own
		say(t, open.Netns, addressOf(open, 0), text)
		return w.seen(text)
	}
	require.True(t, exchange("before"), "its own")
	for _, damage := range []string{"flush ruleset", "delete table bridge allocnet", "flush chain bridge allocnet own_frames", "delete chain bridge allocnet own_frames"} {
		run(t, "nft", strings.Fields(damage)...)
		require.False(t, exchange(damage), damage)
		require.Contains(t, run(t, "nft", "list", "table", "bridge", names.HeldGuardTable), `comment "the guard is missing`)
		outcomes, err := h.Restore(t.Context(), all)
		require.NoError(t, err)
		require.True(t, outcomes[0].Changed)
		require.NoError(t, h.Check(t.Context(), r))
		say(t, r.Netns, addressOf(neighbour, 0), "FORGED")
		say(t, r.Netns, addressOf(r, 0), "own after "+damage)
		require.False(t, w.seen("own after "+damage), damage)
	}

	// Another process holds the guard as soon as it restores.
	require.NoError(t, h.Close())
	require.NotContains(t, run(t, "nft", "list", "tables"), names.HeldGuardTable, "the last engine is closed")
	second := native.New(hclog.NewNullLogger(), h.dir+"/state").LongLived(true)
	defer func() { require.NoError(t, second.Close()) }()
	_, err := second.Restore(t.Context(), all)
	require.NoError(t, err)
	privhost.FlushRuleset(t)
	require.False(t, exchange("second"))
	for _, one := range all {
		require.NoError(t, second.Del(t.Context(), one))
	}
}

// TestMarkOfHeldGuard: the bit with which the held guard marks frames is not visible behind it.
func TestMarkOfHeldGuard(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	h.Engine = native.New(hclog.NewNullLogger(), h.dir+"/state").LongLived(true)
	defer func() { require.NoError(t, h.Close()) }()
	r := h.request(network(t, "net", "1.0.0", nil, h.bridged("br0", "10.77.0.0/24")))
	neighbour := h.another("neighbour", r)
	h.add(r)
	h.add(neighbour)
	rules := fmt.Sprintf("table bridge watch {\n chain c {\n type filter hook prerouting priority -300\n meta mark & %#x != 0 counter\n ether type ip counter\n }\n }\n", ruleset.ForwardMark)
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	w := newWitness(t, neighbour.Netns)
	say(t, r.Netns, addressOf(r, 0), "own")
	require.False(t, w.seen("own"))
	counted := run(t, "nft", "list", "table", "bridge", "watch")
	require.Contains(t, counted, "!= 0x00000000 counter packets 0 ")
	require.Contains(t, counted, "ether type ip counter packets 1 ")
	run(t, "nft", "delete", "table", "bridge", "watch")
	require.NoError(t, h.Del(t.Context(), r))
	require.NoError(t, h.Del(t.Context(), neighbour))
}

// TestGuardOfSeveralNetworks: a container sends from the addresses of all of its networks over
// each of its bridges, and over none after a network was detached.
func TestGuardOfSeveralNetworks(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	first, second := network(t, "first", "1.0.0", nil, h.bridged("br0", "10.77.0.0/24")), network(t, "second", "1.0.0", nil, h.bridged("br1", "10.78.0.0/24"))
	routed := network(t, "routed", "1.0.0", nil, object{"type": "ptp", "ipam": object{"type": "host-local", "subnet": "10.79.0.0/24", "dataDir": h.dir + "/leases"}})
	r := h.request(first, second, routed)
	neighbour := h.another("neighbour", h.request(first))
	h.add(neighbour)
	h.add(r)
	w := newWitness(t, neighbour.Netns)
	from := func(i int) string {
		text := fmt.Sprintf("network %d", i)
		say(t, r.Netns, addressOf(r, i), text)
		return text
	}
	for i := range r.Attachments {
		require.False(t, w.seen(from(i)))
	}
	require.NoError(t, h.Check(t.Context(), r))
	port := r.Attachments[0].Result.Interfaces[1].Name
	run(t, "nft", "delete", "element", "bridge", "allocnet", "port_addresses", "{", port, ".", addressOf(r, 2).String(), "}")
	require.ErrorContains(t, h.Check(t.Context(), r), "address "+addressOf(r, 2).String()+` of bridge port "`+port+`"`)
	_, err := h.Restore(t.Context(), []*engine.Request{r})
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), r))
	run(t, "nft", "flush", "set", "bridge", "allocnet", "port_addresses")
	require.NoError(t, h.Repair(t.Context(), r))
	require.NoError(t, h.Check(t.Context(), r))
	require.NoError(t, h.Repair(t.Context(), neighbour))

	// Detach of the network in the middle.
	gone, stays := *r, *r
	gone.Attachments, stays.Attachments = r.Attachments[1:2:2], []engine.Attachment{r.Attachments[0], r.Attachments[2]}
	stays.Attachments[0].IfName, stays.Attachments[1].IfName, gone.Attachments[0].IfName = "eth0", "eth2", "eth1"
	gone.Others = stays.Attachments
	require.NoError(t, h.Del(t.Context(), &gone))
	require.NotContains(t, portTable(t), "10.78.0.")
	require.NoError(t, h.Check(t.Context(), &stays))

	// Attach of it.
	gone.Attachments[0].Result = nil
	h.add(&gone)
	stays.Attachments = append(stays.Attachments, gone.Attachments[0])
	require.NoError(t, h.Check(t.Context(), &stays))
	text := "attached"
	say(t, r.Netns, addressOf(&stays, 2), text)
	require.False(t, w.seen(text))
	require.NoError(t, h.Del(t.Context(), &stays))
	require.NoError(t, h.Del(t.Context(), neighbour))
	require.NotContains(t, portTable(t), `comment "allocnet:`)
}

// announce sends an ARP reply for an address from an interface of a container to all others, with a text behind it.
func announce(t testing.TB, netns, name string, address netip.Addr, text string) {
	t.Helper()
	within(t, netns, func() error {
		fd, link, err := packetsOn(name)
		require.NoError(t, err)
		defer unix.Close(fd)
		mac, ip := []byte(link.HardwareAddr), address.AsSlice()
		_, err = unix.Write(fd, slices.Concat(broadcast, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, mac, ip, broadcast, ip, []byte(text)))
		return err
	})
}

// TestGuardOfOverlappingNetworks: on a bridge, a container does not answer for the gateway nor for a neighbour,
// even if another network, on a bridge of its own, has given it their addresses. It answers for other addresses
// of that network, and for all of those that it has in the first network.
func TestGuardOfOverlappingNetworks(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	first := network(t, "first", "1.0.0", nil, h.bridged("br0", "10.77.0.0/24"))
	neighbour := h.another("neighbour", h.request(first))
	h.add(neighbour)
	w, others := newWitness(t, neighbour.Netns), netip.MustParseAddr("10.90.0.5")
	private := network(t, "private", "1.0.0", nil, object{"type": "bridge", "bridge": "br9", "ipam": object{"type": "static", "addresses": []any{
		object{"address": "10.77.0.1/24"}, object{"address": addressOf(neighbour, 0).String() + "/24"}, object{"address": others.String() + "/24"},
		object{"address": "10.77.0.9/24"}, object{"address": "169.254.3.4/16"},
	}}})
	for name, networks := range map[string][]*conflist.Network{"private second": {first, private, first}, "private first": {private, first, first}} {
		t.Run(name, func(t *testing.T) {
			r := h.another("overlapping", h.request(networks...))
			t.Cleanup(func() { require.NoError(t, sandbox.Destroy(r.Netns)) })
			at := slices.Index(networks, first)
			h.add(r)
			require.NoError(t, h.Check(t.Context(), r))
			say := func(address netip.Addr, text string) { announce(t, r.Netns, fmt.Sprintf("eth%d", at), address, text) }
			for _, forged := range []string{"10.77.0.1", addressOf(neighbour, 0).String(), "10.77.0.9", "169.254.3.4"} {
				say(netip.MustParseAddr(forged), "FORGED")
			}
			for text, own := range map[string]netip.Addr{"private": others, "second interface": addressOf(r, 2), "first interface": addressOf(r, at)} {
				say(own, text)
				require.False(t, w.seen(text), text)
			}
			require.NoError(t, h.Del(t.Context(), r))
		})
	}
	require.NoError(t, h.Del(t.Context(), neighbour))
	require.NotContains(t, portTable(t), `comment "allocnet:`)
}

// TestDelBesideAnUnusableConfiguration: without the configuration of another network, DEL does not know which
// addresses each port permits. It leaves those of another interface of the container in the same network.
func TestDelBesideAnUnusableConfiguration(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	n := network(t, "first", "1.0.0", nil, h.bridged("br0", "10.77.0.0/24"))
	stays, gone := h.request(n), h.request(n)
	gone.Attachments[0].IfName = "eth1"
	stays.Instance, gone.Instance = new(string), new(string)
	h.add(stays)
	h.add(gone)
	unusable := network(t, "unusable", "1.0.0", nil, object{"type": "bridge", "vlan": "x"})
	gone.Others = []engine.Attachment{{Network: unusable, IfName: "eth2", Result: gone.Attachments[0].Result}}
	require.NoError(t, h.Del(t.Context(), gone))
	require.NotContains(t, portTable(t), `/web/eth1`)
	require.NoError(t, h.Check(t.Context(), stays))
	require.NoError(t, h.Del(t.Context(), stays))
	require.NotContains(t, portTable(t), `comment "allocnet:`)
}

// TestGuardOfLaterPlugins: the guard permits what the result of the whole chain has, also if
// the later plugins are binaries.
func TestGuardOfLaterPlugins(t *testing.T) {
	h := newTestHost(t)
	privhost.Require(t, "nft")
	privhost.FlushRuleset(t)
	more := func(r string) map[string]fakeplugin.Behaviour {
		return map[string]fakeplugin.Behaviour{"ADD": {Result: []byte(r)}}
	}
	owner := names.Owner{Network: "net", ID: "web", IfName: "eth0"}
	final := fmt.Sprintf(`{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":%q,"mac":"02:00:00:00:00:01"},{"name":"eth0","mac":"02:aa:00:00:00:0a","sandbox":%q}],
		"ips":[{"address":"10.77.0.2/24","interface":2,"gateway":"10.77.0.1"},{"address":"10.77.0.200/24","interface":2}],"dns":{}}`, owner.Veth(), h.netns)
	r := h.request(network(t, "net", "1.0.0", nil, h.bridged("br0", "10.77.0.0/24"), h.fake("one", more(final))))
	r.Instance = new(string)
	h.add(r)
	listed := portTable(t)
	require.Equal(t, 1, strings.Count(listed, `"`+owner.Veth()+`" . 02:`), listed)
	for _, permitted := range []string{"02:aa:00:00:00:0a", "10.77.0.2 ", "10.77.0.200", "fe80::aa:ff:fe00:a"} {
		require.Contains(t, listed, `"`+owner.Veth()+`" . `+permitted)
	}
	require.NoError(t, h.Del(t.Context(), r))
	require.NotContains(t, portTable(t), `comment "allocnet:`)
}
