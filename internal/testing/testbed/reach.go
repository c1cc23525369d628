package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/portmap"
)

// Serve answers on a port inside a namespace, "" being the host's, over tcp or udp, with a name and
// the client's address as the server sees it.
func Serve(t testing.TB, netns, protocol string, port int, name string) {
	t.Helper()
	answer := func(from net.Addr) []byte {
		at := netip.MustParseAddrPort(from.String())
		return []byte(name + " " + at.Addr().Unmap().String())
	}
	addr := fmt.Sprintf(":%d", port)
	Within(t, netns, func() error {
		if protocol == "sctp" {
			l, err := listenSCTP(port)
			if err == nil {
				t.Cleanup(func() { l.Close() })
				go ServeTCP(l, answer)
			}
			return err
		}
		if protocol == "udp" {
			c, err := net.ListenPacket("udp", addr)
			if err == nil {
				t.Cleanup(func() { c.Close() })
				go serveUDP(c, answer)
			}
			return err
		}
		l, err := net.Listen("tcp", addr)
		if err == nil {
			t.Cleanup(func() { l.Close() })
			go ServeTCP(l, answer)
		}
		return err
	})
}

// ServeTCP answers every connection until the listener is closed.
func ServeTCP(l net.Listener, answer func(net.Addr) []byte) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write(answer(c.RemoteAddr()))
		c.Close()
	}
}

func serveUDP(c net.PacketConn, answer func(net.Addr) []byte) {
	buf := make([]byte, 64)
	for {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(answer(from), from)
	}
}

// Timeout bounds the wait for an answer, and Silence is the wait for an answer
// that must not arrive.
const (
	Timeout = 2 * time.Second
	Silence = 300 * time.Millisecond
)

// Ask sends a request from a namespace and returns the answer. "" is the host.
func Ask(timeout time.Duration, netns, protocol, addr string) (answer string, err error) {
	err = within(netns, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		dial := (&net.Dialer{}).DialContext
		if protocol == "sctp" {
			dial = dialSCTP
		}
		c, err := dial(ctx, protocol, addr)
		if err != nil {
			return err
		}
		defer c.Close()
		deadline, _ := ctx.Deadline()
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
		if protocol == "udp" {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
			buf := make([]byte, 64)
			n, err := c.Read(buf)
			answer = string(buf[:n])
			return err
		}
		all, err := io.ReadAll(c)
		answer = string(all)
		return err
	})
	return answer, err
}

// RequireAnswer repeats a request until it is answered: a first datagram or a
// neighbour lookup may be lost.
func RequireAnswer(t testing.TB, netns, protocol, addr, name string) (from string) {
	t.Helper()
	var errs []error
	for range 5 {
		answer, err := Ask(Timeout, netns, protocol, addr)
		if err == nil {
			var got string
			_, err = fmt.Sscan(answer, &got, &from)
			require.NoError(t, err, answer)
			require.Equal(t, name, got, "%s %s answers", protocol, addr)
			return from
		}
		errs = append(errs, err)
	}
	require.NoError(t, errors.Join(errs...), "%s %s from %q", protocol, addr, netns)
	return ""
}

// RequireSilence sends one request, which must not be answered.
func RequireSilence(t testing.TB, netns, protocol, addr string) {
	t.Helper()
	answer, err := Ask(Silence, netns, protocol, addr)
	require.Error(t, err, "%s %s answered %q", protocol, addr, answer)
}

// RequireRefused sends a request, which must be refused. The first refusal may
// be lost to a neighbour lookup.
func RequireRefused(t testing.TB, netns, protocol, addr string) {
	t.Helper()
	var answer string
	var err error
	for range 3 {
		answer, err = Ask(Timeout, netns, protocol, addr)
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	require.ErrorIs(t, err, unix.ECONNREFUSED, "%s %s from %q answered %q", protocol, addr, netns, answer)
}

// HostPort returns the address in a prefix with a port, as package net expects it.
func HostPort(a netip.Prefix, port int) string {
	return netip.AddrPortFrom(a.Addr(), uint16(port)).String()
}

// At returns an address with a port, as package net expects it.
func At(a netip.Addr, port int) string { return netip.AddrPortFrom(a, uint16(port)).String() }

// Protocols returns the protocols that the kernel has sockets for.
func Protocols() []string {
	if HasSCTP() {
		return []string{"tcp", "udp", "sctp"}
	}
	return []string{"tcp", "udp"}
}

// ServeStreams echoes every byte on TCP port 80 until the client disconnects.
func ServeStreams(t testing.TB, netns string) {
	t.Helper()
	Within(t, netns, func() error {
		l, err := net.Listen("tcp", ":80")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
				go func() { _, _ = io.Copy(c, c) }()
			}
		}()
		return nil
	})
}

// TCPPort returns a host port over TCP.
func TCPPort(value, to int) portmap.Port {
	return portmap.Port{Value: value, To: to, Protocols: []string{"tcp"}}
}

// Echo is EchoFrom outside.
func (h *Host) Echo(to string) func() error {
	h.T.Helper()
	return h.EchoFrom(h.Outside.Path(), to)
}

// EchoFrom opens a connection from a namespace to a server of ServeStreams. The result sends a
// byte and awaits it.
func (h *Host) EchoFrom(netns, to string) func() error {
	h.T.Helper()
	send := h.EchoWithin(netns, to)
	return func() error { return send(Timeout) }
}

// EchoWithin is EchoFrom with a limit of each wait.
func (h *Host) EchoWithin(netns, to string) func(time.Duration) error {
	h.T.Helper()
	var c net.Conn
	Within(h.T, netns, func() (err error) {
		c, err = net.DialTimeout("tcp", to, Timeout)
		return err
	})
	h.T.Cleanup(func() { c.Close() })
	send := func(timeout time.Duration) error {
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	require.NoError(h.T, send(Timeout))
	return send
}
