package ruleset

import (
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// TestPolicedBeforeBridgeNetfilter: frames to a port with a policy are dropped also if br_netfilter adds its
// hooks to the namespace, with the first bridge, when the table exists already.
func TestPolicedBeforeBridgeNetfilter(t *testing.T) {
	privhost.Require(t, "ip", "nft")
	host := namespace(t, "ruleset-hooks")
	var r *Ruleset
	inside(t, host, func() (err error) {
		noDAD(t)
		r, err = Open()
		return err
	})
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	p := examplePolicy()
	require.NoError(t, r.AddPolicy(t.Context(), p))
	require.NoError(t, r.Add(t.Context(), policedElements("x", p, addr4(net0, 3).Addr().String(), addr6(net0, 3).Addr().String())))

	inside(t, host, func() error {
		run(t, "ip", "link", "add", "br0", "type", "bridge", "nf_call_iptables", "1", "nf_call_ip6tables", "1")
		run(t, "ip", "link", "set", "br0", "up")
		return nil
	})
	sender, policed := machineAt(t, host, "port-y", 2), machineAt(t, host, "port-x", 3)
	received := make(chan string, 100)
	inside(t, policed, func() error {
		c, err := net.ListenPacket("udp", ":99")
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go report(c, received)
		return nil
	})
	for _, to := range []string{"255.255.255.255:99", "10.71.0.255:99", "[ff02::1%eth0]:99"} {
		before := dropped(t, host)
		inside(t, sender, func() error {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(to))
			return err
		})
		require.Eventually(t, func() bool { return dropped(t, host) != before }, 10*time.Second, 10*time.Millisecond, "drop of a packet to %s", to)
	}
	require.Empty(t, received)
}

func namespace(t *testing.T, name string) *sandbox.Sandbox {
	t.Helper()
	s, err := sandbox.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return s
}

func inside(t *testing.T, s *sandbox.Sandbox, do func() error) {
	t.Helper()
	require.NoError(t, s.Do(do))
}

// machineAt makes a namespace with a link to a port of br0.
func machineAt(t *testing.T, host *sandbox.Sandbox, port string, number int) *sandbox.Sandbox {
	t.Helper()
	s := namespace(t, "ruleset-"+port)
	inside(t, host, func() error {
		run(t, "ip", "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", s.Name())
		run(t, "ip", "link", "set", port, "master", "br0", "up")
		return nil
	})
	inside(t, s, func() error {
		noDAD(t)
		run(t, "ip", "addr", "add", addr4(net0, number).String(), "broadcast", "+", "dev", "eth0")
		run(t, "ip", "addr", "add", addr6(net0, number).String(), "dev", "eth0", "nodad")
		run(t, "ip", "link", "set", "eth0", "up")
		run(t, "ip", "route", "add", "default", "dev", "eth0")
		return nil
	})
	// The kernel lets a port forward after it has handled the change of its carrier, up to a second later.
	forwards := func() (yes bool) {
		inside(t, host, func() error {
			yes = strings.Contains(run(t, "ip", "-details", "link", "show", "dev", port), "state forwarding")
			return nil
		})
		return yes
	}
	require.Eventually(t, forwards, 10*time.Second, 10*time.Millisecond, "%s does not forward", port)
	return s
}

// dropped returns the counters of the packets that the chain to_policed has dropped.
func dropped(t *testing.T, host *sandbox.Sandbox) (counters string) {
	t.Helper()
	inside(t, host, func() error {
		for _, rule := range regexp.MustCompile(`counter packets \d+`).FindAllString(nft(t, "list", "chain", "bridge", "allocnet", chainToPoliced), -1) {
			counters += rule + "\n"
		}
		return nil
	})
	return counters
}

func report(c net.PacketConn, received chan<- string) {
	data := make([]byte, 100)
	for {
		n, _, err := c.ReadFrom(data)
		if err != nil {
			return
		}
		received <- string(data[:n])
	}
}
