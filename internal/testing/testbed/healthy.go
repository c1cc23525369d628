package testbed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
)

// The sizes of what is sent over a network that CHECK calls healthy: with a wrong MTU, only the large one is lost.
var healthySizes = []int{64, 64 << 10}

// requireReached requires that a network is reached which CHECK calls healthy: from the host, and the host from it, over
// all of its addresses. Networks whose allocations the host has no way to are left out.
func (h *Host) requireReached(a configurator.Allocation) {
	h.T.Helper()
	if len(h.open) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(h.T.Context(), 2*time.Minute)
	defer cancel()
	if h.CheckOnly(ctx, a) != nil { // also a test that has torn it down, or destroyed its namespace
		return
	}
	r, err := h.Get(ctx, a.ID)
	require.NoError(h.T, err)
	for _, i := range r.Status.Interfaces {
		for _, address := range i.Addresses {
			if h.open[i.Network] && i.Sandbox == r.Netns && address.Gateway != "" { // without a gateway, the host has no address there
				h.requireEchoes(r, address.Address)
			}
		}
	}
}

func (h *Host) requireEchoes(r *configurator.Record, address string) {
	h.T.Helper()
	prefix, err := netip.ParsePrefix(address)
	require.NoError(h.T, err)
	for _, size := range healthySizes {
		back, err := echo("", r.Netns, prefix.Addr(), size)
		require.NoError(h.T, err, "CHECK of %q finds nothing, but the host does not reach %s with %d bytes", r.ID, address, size)
		_, err = echo(r.Netns, "", back, size)
		require.NoError(h.T, err, "CHECK of %q finds nothing, but %s does not reach the host with %d bytes", r.ID, address, size)
	}
}

// echo sends bytes over TCP from one namespace to another one's address, and receives them back. It returns the address from
// which the connection came.
func echo(from, to string, addr netip.Addr, size int) (client netip.Addr, err error) {
	var l net.Listener
	if err := within(to, func() (err error) {
		l, err = net.Listen("tcp", ":0")
		return err
	}); err != nil {
		return client, err
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- echoOne(l) }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return client, err
	}
	var c net.Conn
	if err := within(from, func() (err error) {
		c, err = net.DialTimeout("tcp", net.JoinHostPort(addr.String(), port), Timeout)
		return err
	}); err != nil {
		return client, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Timeout)); err != nil {
		return client, err
	}
	sent, received := make([]byte, size), make([]byte, size)
	_, _ = rand.Read(sent)
	_, err = c.Write(sent)
	if err == nil {
		_, err = io.ReadFull(c, received)
	}
	if err == nil && string(sent) != string(received) {
		err = errors.New("other bytes came back")
	}
	if err != nil {
		return client, err
	}
	c.Close()
	if err := <-served; err != nil {
		return client, err
	}
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	return at.Addr().Unmap(), err
}

// echoOne echoes all bytes of one connection.
func echoOne(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.Copy(c, c); err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	return nil
}
