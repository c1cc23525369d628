package integration

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestHandover: clients that keep sending from the same ports reach the current
// holder of the host port, even if they started before it had a holder.
func TestHandover(t *testing.T) {
	testbed.Each(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		mains := []string{"bridge"}
		if w == testbed.Native {
			mains = append(mains, "ptp")
		}
		for _, main := range mains {
			t.Run(main, func(t *testing.T) { testHandover(t, w, main) })
		}
	})
}

func testHandover(t *testing.T, w testbed.Way, main string) {
	h := newHost(t, w.Engine)
	h.Network("net", testbed.Chain(main, testbed.Dual, w.Backend)...)
	testbed.SetSysctls(t, "", testbed.Quick)
	two := []configurator.Allocation{h.Alloc("a"), h.Alloc("b")}
	for i := range two {
		two[i].Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"udp"}}}
		h.InNew(two[i], func() {
			testbed.SetSysctls(t, two[i].Netns, testbed.Quick)
			testbed.Serve(t, two[i].Netns, "udp", 80, two[i].ID)
		})
	}
	other := h.Alloc("other") // rules exist, and connections are tracked
	other.Ports = []portmap.Port{{Value: 8081, To: 80}}
	h.SetUp(other)

	clients := map[string]net.Conn{testhost.Outside4.Addr().String(): h.client(testbed.At(testhost.Host4.Addr(), 8080)), testhost.Outside6.Addr().String(): h.client(testbed.At(testhost.Host6.Addr(), 8080))}
	requireNobody := func() {
		for _, c := range clients {
			_, err := exchange(c)
			require.ErrorIs(t, err, unix.ECONNREFUSED)
		}
	}
	requireServer := func(name string) {
		for from, c := range clients {
			answer, err := exchange(c)
			if err != nil { // the first datagram may be lost
				answer, err = exchange(c)
			}
			require.NoError(t, err, "%s to %s", from, name)
			require.Equal(t, name+" "+from, answer)
		}
	}
	requireNobody()
	for _, silent := range []bool{false, true} {
		for _, a := range two {
			h.SetUp(a)
			requireServer(a.ID)
			h.TearDown(a)
			if !silent {
				requireNobody()
			}
		}
	}
	h.TearDown(other)
}

// client returns a UDP socket outside that always sends from the same port.
func (h *host) client(to string) (c net.Conn) {
	h.T.Helper()
	testbed.Within(h.T, h.Outside.Path(), func() (err error) {
		c, err = net.Dial("udp", to)
		return err
	})
	h.T.Cleanup(func() { c.Close() })
	return c
}

// exchange sends one datagram and waits for the response.
func exchange(c net.Conn) (string, error) {
	buf := make([]byte, 64)
	err := c.SetDeadline(time.Now().Add(testbed.Timeout))
	_, writeErr := c.Write([]byte("?"))
	if err := errors.Join(err, writeErr); err != nil {
		return "", fmt.Errorf("send to %s: %w", c.RemoteAddr(), err)
	}
	n, err := c.Read(buf)
	return string(buf[:n]), err
}
