package integration

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

func tcpPort(value, to int) portmap.Port {
	return portmap.Port{Value: value, To: to, Protocols: []string{"tcp"}}
}

// TestUpdate publishes and unpublishes host ports of an allocation while clients use it.
func TestUpdate(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) { testUpdate(t, main) })
	}
}

func testUpdate(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	h.network("net", chain(main, dual, "")...)
	a := h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(8080, 80), tcpPort(8081, 81)}
	h.inNew(a, func() {
		serveStreams(t, a.Netns)
		serve(t, a.Netns, "tcp", 81, "eighty-one")
		serve(t, a.Netns, "tcp", 82, "eighty-two")
		serve(t, a.Netns, "udp", 81, "datagram")
	})
	h.setUp(a)
	outside, kept := h.outside.Path(), h.echo(hostPort(host4, 8080))
	for _, host := range []string{hostPort(host4, 8081), hostPort(host6, 8081)} {
		requireAnswer(t, outside, "tcp", host, "eighty-one")
	}

	s, err := h.Update(h.ctx(), a.ID, configurator.Change{
		Unpublish: []portmap.Port{tcpPort(8081, 0)},
		Publish:   []portmap.Port{tcpPort(8082, 82), {Value: 8083, To: 81, Protocols: []string{"udp"}}},
	})
	require.NoError(t, err)
	require.Len(t, s.Ports, 3)
	for _, host := range []string{host4.Addr().String(), host6.Addr().String()} {
		requireRefused(t, outside, "tcp", net.JoinHostPort(host, "8081"))
		requireAnswer(t, outside, "tcp", net.JoinHostPort(host, "8082"), "eighty-two")
		requireAnswer(t, outside, "udp", net.JoinHostPort(host, "8083"), "datagram")
		requireAnswer(t, "", "tcp", net.JoinHostPort(host, "8082"), "eighty-two")
	}
	requireAnswer(t, "", "tcp", "127.0.0.1:8082", "eighty-two")
	require.NoError(t, kept(), "the connection to a port that stays goes on")
	require.NoError(t, h.CheckOnly(h.ctx(), a))

	require.NoError(t, command("nft", "flush", "ruleset"))
	_, err = h.Repair(h.ctx())
	require.NoError(t, err)
	requireAnswer(t, outside, "tcp", hostPort(host4, 8082), "eighty-two")
	requireRefused(t, outside, "tcp", hostPort(host4, 8081))

	ending := h.echo(hostPort(host4, 8080))
	_, err = h.Update(h.ctx(), a.ID, configurator.Change{Unpublish: []portmap.Port{{Value: 8080}, {Value: 8082}, {Value: 8083}}})
	require.NoError(t, err)
	require.Error(t, ending(), "the connection to a port that goes ends")
	requireRefused(t, outside, "tcp", hostPort(host4, 8082))
	h.tearDown(a)
}

// echo opens a connection from outside to a server of serveStreams. The result sends a byte
// and awaits it.
func (h *host) echo(to string) func() error {
	h.t.Helper()
	var c net.Conn
	within(h.t, h.outside.Path(), func() (err error) {
		c, err = net.DialTimeout("tcp", to, timeout)
		return err
	})
	h.t.Cleanup(func() { c.Close() })
	send := func() error {
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	require.NoError(h.t, send())
	return send
}

// TestUpdateIsAtomic: while a host port is led from one server to another and back, every
// connect is answered by one of them.
func TestUpdateIsAtomic(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.network("net", chain("bridge", dual, "")...)
	a := h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(8080, 81)}
	h.inNew(a, func() {
		serve(t, a.Netns, "tcp", 81, "eighty-one")
		serve(t, a.Netns, "tcp", 82, "eighty-two")
	})
	h.setUp(a)
	requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "eighty-one")

	var asked [2]atomic.Int64 // answers of the two servers
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			answer, err := ask(timeout, h.outside.Path(), "tcp", hostPort(host4, 8080))
			if err != nil {
				t.Errorf("after %d and %d answers: %v", asked[0].Load(), asked[1].Load(), err)
				return
			}
			asked[min(1, strings.Count(answer, "eighty-two"))].Add(1)
		}
	})
	enough := func() bool { return t.Failed() || asked[0].Load() >= 20 && asked[1].Load() >= 20 }
	for i := 0; i < 100 || !enough(); i++ {
		_, err := h.Update(h.ctx(), a.ID, configurator.Change{
			Unpublish: []portmap.Port{tcpPort(8080, 0)}, Publish: []portmap.Port{tcpPort(8080, 82-i%2)},
		})
		require.NoError(t, err)
	}
	close(stop)
	asking.Wait()
	h.tearDown(a)
}
