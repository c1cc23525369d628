package configurator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/hostports"
	"github.com/allocnet/allocnet/internal/testing/fakeconmon"
	"github.com/allocnet/allocnet/portmap"
)

// listen opens a listener on the host.
func listen(t *testing.T, network, address string) {
	t.Helper()
	var l io.Closer
	var err error
	if network[:3] == "tcp" {
		l, err = net.Listen(network, address)
	} else {
		l, err = net.ListenPacket(network, address)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
}

// listenerHosts are hosts whose network assigns IPv4 addresses, by engine.
var listenerHosts = map[string]func(t *testing.T) *testHost{
	"native": func(t *testing.T) *testHost {
		h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
		return h
	},
	"exec": func(t *testing.T) *testHost {
		h := newTestHost(t)
		h.network("net", "1.0.0", adds())
		return h
	},
}

// TestListenersAreReported: Setup reports the listeners whose packets go to the allocation,
// and no others.
func TestListenersAreReported(t *testing.T) {
	for name, newTestHost := range listenerHosts {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			var log bytes.Buffer
			h.cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
			h.Configurator = h.restarted()
			for i, c := range []struct {
				network, address, hostIP, protocol string
				warned                             bool
			}{
				{"tcp4", "0.0.0.0", "", "tcp", true},
				{"tcp4", "127.0.0.1", "", "tcp", true},
				{"tcp", "::", "", "tcp", true},
				{"tcp6", "::", "", "tcp", false}, // the allocation has no IPv6
				{"tcp6", "::1", "", "tcp", false},
				{"tcp4", "0.0.0.0", "127.0.0.1", "tcp", true},
				{"tcp4", "127.0.0.1", "127.0.0.2", "tcp", false},
				{"tcp4", "0.0.0.0", "", "udp", false},
				{"udp4", "127.0.0.1", "", "udp", true},
				{"udp", "::", "127.0.0.1", "udp", true},
				{"udp4", "127.0.0.1", "127.0.0.2", "udp", false},
			} {
				port := 7000 + i
				listen(t, c.network, net.JoinHostPort(c.address, fmt.Sprint(port)))
				a := h.alloc(fmt.Sprintf("a%d", i))
				a.Ports = []portmap.Port{{Value: port, To: 80, HostIP: c.hostIP, Protocols: []string{c.protocol}}, {Value: 6999}}
				log.Reset()
				status, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				if c.warned {
					require.Len(t, status.Warnings, 1, c)
					require.Regexp(t, fmt.Sprintf(`^host port .*%d/%s: a process of the host \(user %d\) listens on .*:%[1]d; `, port, c.protocol, os.Getuid()), status.Warnings[0])
					require.Contains(t, log.String(), fmt.Sprintf("%d/%s", port, c.protocol))
				} else {
					require.Empty(t, status.Warnings, c)
					require.NotContains(t, log.String(), "listens")
				}
				again, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				require.Equal(t, found(status), again, "a repeated Setup warns as well")
				r, err := h.Get(t.Context(), a.ID)
				require.NoError(t, err)
				require.Empty(t, r.Status.Warnings)
				require.NoError(t, h.Teardown(context.Background(), a))
			}
		})
	}
}

// TestListenersAreRefused: if the Config says so, Setup refuses before anything
// is done.
func TestListenersAreRefused(t *testing.T) {
	for name, newTestHost := range listenerHosts {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.cfg.Listeners = ListenerRefuse
			h.Configurator = h.restarted()
			listen(t, "tcp4", "127.0.0.1:7100")
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Label: "http", Value: 7100, To: 80, Protocols: []string{"tcp"}}, {Value: 7101}}
			_, err := h.Setup(t.Context(), a)
			require.ErrorIs(t, err, ErrListener)
			var listener *ListenerError
			require.ErrorAs(t, err, &listener)
			require.Equal(t, a.ID, listener.ID)
			require.Equal(t, 7100, listener.Mapping.HostPort)
			require.Equal(t, "127.0.0.1:7100", listener.Address)
			require.Equal(t, os.Getpid(), listener.PID)
			require.NotEmpty(t, listener.Process)
			require.Empty(t, h.commands())
			h.requireNoRecords()

			h.cfg.Listeners = ListenerIgnore
			status, err := h.restarted().Setup(t.Context(), a)
			require.NoError(t, err)
			require.Empty(t, status.Warnings)
			h.cfg.Listeners = ListenerRefuse
			again, err := h.restarted().Setup(t.Context(), a)
			require.NoError(t, err, "what is set up stays so")
			require.Len(t, again.Warnings, 1)
			again.Warnings = nil
			require.Equal(t, found(status), again)
			require.NoError(t, h.Teardown(context.Background(), a))
		})
	}
}

// TestManyListeners: only some of many listeners are reported.
func TestManyListeners(t *testing.T) {
	h := listenerHosts["exec"](t)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 7200, To: 80, Range: 20, Protocols: []string{"tcp"}}}
	for i := range 20 {
		listen(t, "tcp4", fmt.Sprintf("127.0.0.1:%d", 7200+i))
	}
	status, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, status.Warnings, hostports.MaxListeners+1)
	require.Equal(t, "processes of the host listen on 4 more published ports", status.Warnings[hostports.MaxListeners])
	require.NoError(t, h.Teardown(context.Background(), a))
	h.cfg.Listeners = ListenerRefuse
	_, err = h.restarted().Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrListener)
	require.ErrorContains(t, err, "and on 4 more")
}

// TestReservedByTheRuntime: the socket with which the runtime of a container reserves its host
// port is neither reported nor a reason to refuse, that of another container is.
func TestReservedByTheRuntime(t *testing.T) {
	for name, newTestHost := range listenerHosts {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			fakeconmon.Start(t, "conmon", "web", "tcp4", "0.0.0.0:7200")
			a := h.alloc("web.eth0")
			a.ContainerID = "web"
			a.Ports = []portmap.Port{{Value: 7200, To: 80, Protocols: []string{"tcp"}}}
			other := a
			other.ContainerID = "db"
			for _, mode := range []ListenerPolicy{ListenerWarn, ListenerRefuse} {
				h.cfg.Listeners = mode
				h.Configurator = h.restarted()
				for range 2 {
					status, err := h.Setup(t.Context(), a)
					require.NoError(t, err)
					require.Empty(t, status.Warnings)
				}
				require.NoError(t, h.Teardown(context.Background(), a))
			}
			_, err := h.Setup(t.Context(), other)
			require.ErrorIs(t, err, ErrListener)
			require.Contains(t, err.Error(), `("conmon")`)
			require.NotContains(t, err.Error(), "end that process")
			h.requireNoRecords()
		})
	}
}
