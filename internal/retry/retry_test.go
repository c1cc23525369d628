package retry

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// TestListWhileLinksChange lists links while another adds and deletes some.
func TestListWhileLinksChange(t *testing.T) {
	privhost.Require(t)
	for i := range 40 { // so many that the kernel needs more than one message
		link := bridge(fmt.Sprint("stays", i))
		require.NoError(t, netlink.LinkAdd(link))
		t.Cleanup(func() { require.NoError(t, netlink.LinkDel(link)) })
	}
	end, changing := make(chan struct{}), make(chan error)
	go func() { changing <- changeLinks(end) }()
	interrupted := 0
	for range 100 {
		list, err := List(func() ([]netlink.Link, error) {
			list, err := netlink.LinkList()
			if errors.Is(err, netlink.ErrDumpInterrupted) {
				interrupted++
			}
			return list, err
		})
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(list), 40)
	}
	close(end)
	require.NoError(t, <-changing)
	require.NotZero(t, interrupted, "the kernel interrupted no list: the test shows nothing")
}

func changeLinks(end chan struct{}) error {
	for {
		select {
		case <-end:
			return nil
		default:
		}
		link := bridge("goes")
		if err := errors.Join(netlink.LinkAdd(link), netlink.LinkDel(link)); err != nil {
			return err
		}
	}
}

func bridge(name string) *netlink.Bridge {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return &netlink.Bridge{LinkAttrs: attrs}
}

func TestListGivesUp(t *testing.T) {
	calls := 0
	_, err := List(func() ([]int, error) {
		calls++
		return nil, netlink.ErrDumpInterrupted
	})
	require.ErrorIs(t, err, netlink.ErrDumpInterrupted)
	require.Equal(t, retries, calls)
}
