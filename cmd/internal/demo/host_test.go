package demo

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func TestTheMemoryOfAFirstUseMayStay(t *testing.T) {
	d := &demo{Options: Options{Config: configurator.Config{StateDir: "/run/allocnet"}}}
	ignore := d.snapshotOptions().Ignore
	require.True(t, ignore(`file /run/allocnet/warm/allocnet+ports 0600 ""`))
	require.True(t, ignore(`file /run/allocnet/claims/complete-3 0600 ""`))
	for _, line := range []string{
		`file /run/allocnet/claims/port-80 0600 ""`,
		`file /run/allocnet/warmer/x 0600 ""`, `file /run/allocnet/allocs/x 0600 ""`, `file /run/warm/x 0600 ""`,
	} {
		require.False(t, ignore(line), line)
	}
}

// TestSettle waits for an address in a sandbox that is subject to duplicate
// address detection, which takes about a second.
func TestSettle(t *testing.T) {
	privhost.Require(t)
	ns, err := sandbox.Create("settle")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ns.Destroy()) })
	d := &demo{allocs: []*allocation{{id: "settle", ns: ns}}}
	_, err = d.settle(t.Context())
	require.NoError(t, err)

	require.NoError(t, ns.Do(addTentative))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = d.settle(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "2001:db8::1")
	_, err = d.settle(t.Context())
	require.NoError(t, err)
}

func addTentative() error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs("eth0"), PeerName: "peer"}); err != nil {
		return err
	}
	for _, name := range []string{"peer", "eth0"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr("2001:db8::1/64")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, address)
}
