package integration

import (
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestUpdate publishes and unpublishes host ports of an allocation while clients use it.
func TestUpdate(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) { testUpdate(t, main) })
	}
}

func testUpdate(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{testbed.TCPPort(8080, 80), testbed.TCPPort(8081, 81)}
	h.InNew(a, func() {
		testbed.ServeStreams(t, a.Netns)
		testbed.Serve(t, a.Netns, "tcp", 81, "eighty-one")
		testbed.Serve(t, a.Netns, "tcp", 82, "eighty-two")
		testbed.Serve(t, a.Netns, "udp", 81, "datagram")
	})
	h.SetUp(a)
	outside, kept := h.Outside.Path(), h.Echo(testbed.HostPort(testhost.Host4, 8080))
	for _, host := range []string{testbed.HostPort(testhost.Host4, 8081), testbed.HostPort(testhost.Host6, 8081)} {
		testbed.RequireAnswer(t, outside, "tcp", host, "eighty-one")
	}

	s, err := h.Update(h.Context(), a.ID, configurator.Change{
		Unpublish: []portmap.Port{testbed.TCPPort(8081, 0)},
		Publish:   []portmap.Port{testbed.TCPPort(8082, 82), {Value: 8083, To: 81, Protocols: []string{"udp"}}},
	})
	require.NoError(t, err)
	require.Len(t, s.Ports, 3)
	for _, host := range []string{testhost.Host4.Addr().String(), testhost.Host6.Addr().String()} {
		testbed.RequireRefused(t, outside, "tcp", net.JoinHostPort(host, "8081"))
		testbed.RequireAnswer(t, outside, "tcp", net.JoinHostPort(host, "8082"), "eighty-two")
		testbed.RequireAnswer(t, outside, "udp", net.JoinHostPort(host, "8083"), "datagram")
		testbed.RequireAnswer(t, "", "tcp", net.JoinHostPort(host, "8082"), "eighty-two")
	}
	testbed.RequireAnswer(t, "", "tcp", "127.0.0.1:8082", "eighty-two")
	require.NoError(t, kept(), "the connection to a port that stays goes on")
	require.NoError(t, h.CheckOnly(h.Context(), a))

	privhost.FlushRuleset(t)
	_, err = h.Repair(h.Context())
	require.NoError(t, err)
	testbed.RequireAnswer(t, outside, "tcp", testbed.HostPort(testhost.Host4, 8082), "eighty-two")
	testbed.RequireRefused(t, outside, "tcp", testbed.HostPort(testhost.Host4, 8081))

	ending := h.Echo(testbed.HostPort(testhost.Host4, 8080))
	_, err = h.Update(h.Context(), a.ID, configurator.Change{Unpublish: []portmap.Port{{Value: 8080}, {Value: 8082}, {Value: 8083}}})
	require.NoError(t, err)
	require.Error(t, ending(), "the connection to a port that goes ends")
	testbed.RequireRefused(t, outside, "tcp", testbed.HostPort(testhost.Host4, 8082))
	h.TearDown(a)
}

// TestUpdateIsAtomic: while a host port is led from one server to another and back, every
// connect is answered by one of them.
func TestUpdateIsAtomic(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{testbed.TCPPort(8080, 81)}
	h.InNew(a, func() {
		testbed.Serve(t, a.Netns, "tcp", 81, "eighty-one")
		testbed.Serve(t, a.Netns, "tcp", 82, "eighty-two")
	})
	h.SetUp(a)
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "eighty-one")

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
			answer, err := testbed.Ask(testbed.Timeout, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
			if err != nil {
				t.Errorf("after %d and %d answers: %v", asked[0].Load(), asked[1].Load(), err)
				return
			}
			asked[min(1, strings.Count(answer, "eighty-two"))].Add(1)
		}
	})
	enough := func() bool { return t.Failed() || asked[0].Load() >= 20 && asked[1].Load() >= 20 }
	for i := 0; i < 40 || !enough(); i++ {
		_, err := h.Update(h.Context(), a.ID, configurator.Change{
			Unpublish: []portmap.Port{testbed.TCPPort(8080, 0)}, Publish: []portmap.Port{testbed.TCPPort(8080, 82-i%2)},
		})
		require.NoError(t, err)
	}
	close(stop)
	asking.Wait()
	h.TearDown(a)
}
