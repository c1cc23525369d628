package trace

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// detecting has the kernel run duplicate address detection for the address with which the
// host looks for the allocation. It takes a tenth of a second per transmission; within three
// of them the kernel would give up to look for the allocation.
const detecting = `sysctl -qw net.ipv6.conf.brtest.accept_dad=1
sysctl -qw net.ipv6.conf.brtest.router_solicitation_delay=0
sysctl -qw net.ipv6.neigh.brtest.retrans_time_ms=100
sysctl -qw net.ipv6.conf.brtest.dad_transmits=TRANSMISSIONS
ip -6 address flush dev brtest scope link
ip -6 address add fe80::1/64 dev brtest
ip -6 neigh flush dev brtest`

// TestDetectionEnds: a probe to an allocation that was just attached waits until the host
// can look for it, and arrives.
func TestDetectionEnds(t *testing.T) {
	h := newHost(t, "bridge")
	defer func(before time.Duration) { detectionTime = before }(detectionTime)
	detectionTime = time.Minute
	h.runWith("TRANSMISSIONS", "10", detecting)
	p := h.follow("tcp", false, true, "")
	require.True(t, p.Reached, "%+v", p.Steps)
}

// TestDetection: an address that stays tentative is named, and nothing else is blamed. Over
// IPv4 the port is reached.
func TestDetection(t *testing.T) {
	defer func(before time.Duration) { detectionTime = before }(detectionTime)
	detectionTime = brokenTime
	const inside = `ip netns exec web sysctl -qw net.ipv6.conf.eth0.accept_dad=1
ip netns exec web sysctl -qw net.ipv6.conf.eth0.dad_transmits=10000
ip -n web -6 address del fd00:77::2/64 dev eth0
ip -n web -6 address add fd00:77::2/64 dev eth0`
	for name, test := range map[string]struct{ commands, transmissions, step, found string }{
		"on the host": {detecting, "10000", "link", "fe80::1 of brtest is tentative: duplicate address detection is running"},
		"inside":      {inside, "", "interface inside", "fd00:77::2 of eth0 is tentative: duplicate address detection is running"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "bridge")
			h.runWith("TRANSMISSIONS", test.transmissions, test.commands)
			for _, protocol := range []string{"tcp", "udp"} {
				p := h.follow(protocol, false, true, "")
				require.False(t, p.From.Port() > 0, "no probe is sent that could arrive later")
				s := failed(p)
				require.Equal(t, test.step, s.Name)
				require.Equal(t, test.found, s.Found)
				require.True(t, h.follow(protocol, true, true, "").Reached)
			}
		})
	}
}

// claiming gives the container the address of the host, which the source guard of the bridge
// would keep it from claiming.
const claiming = `ip link set LINK group default
ip -n web -6 address add fe80::1/64 dev eth0 nodad`

// TestDetectionFails: another node of the network has the address.
func TestDetectionFails(t *testing.T) {
	h := newHost(t, "bridge")
	defer func(before time.Duration) { detectionTime = before }(detectionTime)
	detectionTime = time.Minute
	h.run(claiming)
	h.runWith("TRANSMISSIONS", "1", detecting)
	s := failed(h.follow("udp", false, true, ""))
	require.Equal(t, "link", s.Name)
	require.Equal(t, "fe80::1 of brtest cannot be used: duplicate address detection has found another node with it", s.Found)
}

// TestDetectionOfAnother: an address that cannot be used does not matter if the probe arrives.
func TestDetectionOfAnother(t *testing.T) {
	h := newHost(t, "bridge")
	h.run(claiming)
	h.runWith("TRANSMISSIONS", "1", detecting)
	h.run("ip -6 address add fe80::2/64 dev brtest nodad")
	p := h.follow("tcp", false, true, "")
	require.True(t, p.Reached, "%+v", p.Steps)
}

// TestArrival: a probe whose neighbour is found late arrives, also if nothing would answer it.
func TestArrival(t *testing.T) {
	h := newHost(t, "bridge")
	h.silence()
	h.run("ip neigh flush dev brtest\nip -n web link set eth0 arp off")
	found := make(chan error, 1)
	go func() { // the kernel looks a second time after a second
		out, err := []byte(nil), error(nil)
		for len(out) == 0 && err == nil {
			out, err = exec.CommandContext(t.Context(), "ip", "neigh", "show", "to", "10.77.0.2", "nud", "incomplete").Output()
		}
		found <- errors.Join(err, exec.Command("ip", "-n", "web", "link", "set", "eth0", "arp", "on").Run())
	}()
	s := failed(h.follow("udp", true, true, ""))
	require.NoError(t, <-found)
	require.Equal(t, "listener inside", s.Name, "%+v", s)
}
