package integration

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

	"github.com/allocnet/allocnet/sandbox"
)

// serve answers on a port inside a namespace, "" being the host's, over tcp or udp, with a name and
// the client's address as the server sees it.
func serve(t testing.TB, netns, protocol string, port int, name string) {
	t.Helper()
	answer := func(from net.Addr) []byte {
		at := netip.MustParseAddrPort(from.String())
		return []byte(name + " " + at.Addr().Unmap().String())
	}
	addr := fmt.Sprintf(":%d", port)
	within(t, netns, func() error {
		if protocol == "sctp" {
			l, err := listenSCTP(port)
			if err == nil {
				t.Cleanup(func() { l.Close() })
				go serveTCP(l, answer)
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
			go serveTCP(l, answer)
		}
		return err
	})
}

func serveTCP(l net.Listener, answer func(net.Addr) []byte) {
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

// timeout bounds the wait for an answer, and silence is the wait for an answer
// that must not arrive.
const (
	timeout = 2 * time.Second
	silence = 300 * time.Millisecond
)

// ask sends a request from a namespace and returns the answer. "" is the host.
func ask(timeout time.Duration, netns, protocol, addr string) (answer string, err error) {
	in := func(fn func() error) error { return fn() }
	if netns != "" {
		s, err := sandbox.Open(netns)
		if err != nil {
			return "", err
		}
		defer s.Close()
		in = s.Do
	}
	err = in(func() error {
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

// requireAnswer repeats a request until it is answered: a first datagram or a
// neighbour lookup may be lost.
func requireAnswer(t testing.TB, netns, protocol, addr, name string) (from string) {
	t.Helper()
	var errs []error
	for range 5 {
		answer, err := ask(timeout, netns, protocol, addr)
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

// requireSilence sends one request, which must not be answered.
func requireSilence(t testing.TB, netns, protocol, addr string) {
	t.Helper()
	answer, err := ask(silence, netns, protocol, addr)
	require.Error(t, err, "%s %s answered %q", protocol, addr, answer)
}

// requireRefused sends a request, which must be refused. The first refusal may
// be lost to a neighbour lookup.
func requireRefused(t testing.TB, netns, protocol, addr string) {
	t.Helper()
	var answer string
	var err error
	for range 3 {
		answer, err = ask(timeout, netns, protocol, addr)
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	require.ErrorIs(t, err, unix.ECONNREFUSED, "%s %s from %q answered %q", protocol, addr, netns, answer)
}

func hostPort(a netip.Prefix, port int) string {
	return netip.AddrPortFrom(a.Addr(), uint16(port)).String()
}
