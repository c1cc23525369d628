package rtnl_test

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestTableRoutes: routes of a protocol in a table are added, found and deleted. Those of
// another protocol, over another link or in another table are neither found nor deleted.
func TestTableRoutes(t *testing.T) {
	h := open(t)
	s, v := newSandbox(t, "a"), veth("table")
	require.NoError(t, h.CreateVeth(v, s))
	defer h.DeleteLink(context.Background(), v.Name)
	other := addBridge(t, h, "br0")
	const table, protocol = 1 << 20, 91
	route := func(to string, index int) rtnl.Route {
		_, dst, err := net.ParseCIDR(to)
		require.NoError(t, err)
		r := rtnl.Route{Dst: dst, Index: index, Table: 1 << 20, Protocol: 91, Unreachable: index == 0}
		if dst.IP.To4() != nil && index != 0 {
			r.Scope = unix.RT_SCOPE_LINK
		}
		return r
	}
	for _, to := range []string{"10.5.0.2/32", "fd05::2/128"} {
		for _, one := range []rtnl.Route{route(to, v.Index), route(strings.Split(to, "/")[0]+"/24", 0)} {
			list, err := h.TableRoutes(table, protocol)
			require.NoError(t, err)
			require.Empty(t, list)
			has, err := h.HasTableRoute(&one)
			require.NoError(t, err)
			require.False(t, has)

			for _, want := range []bool{true, false} {
				added, err := h.Announce(&one)
				require.NoError(t, err)
				require.Equal(t, want, added)
			}
			list, err = h.TableRoutes(table, protocol)
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, []any{one.Dst.String(), one.Unreachable, protocol}, []any{list[0].Dst.String(), list[0].Unreachable, int(list[0].Protocol)})

			foreign := []rtnl.Route{one, one, one}
			foreign[0].Protocol++
			foreign[1].Table++
			foreign[2].Index, foreign[2].Unreachable = other, false
			for i := range foreign {
				has, err := h.HasTableRoute(&foreign[i])
				require.NoError(t, err)
				require.False(t, has, "%d", i)
				if _, err = h.Announce(&foreign[i]); i == 1 {
					require.NoError(t, err)
					remove(t, h, &foreign[i])
				} else {
					require.ErrorIs(t, err, rtnl.ErrRouteTaken)
				}
				remove(t, h, &foreign[i])
				has, err = h.HasTableRoute(&one)
				require.NoError(t, err)
				require.True(t, has, "%d", i)
			}
			remove(t, h, &one)
			remove(t, h, &one)
		}
	}
	out, err := exec.Command("ip", "route", "show", "table", "all").CombinedOutput()
	require.NoError(t, err)
	require.NotContains(t, string(out), "10.5.0.")
}

// TestAnnounceBesideDeletions: a route that another process adds and deletes all the time is
// not another route.
func TestAnnounceBesideDeletions(t *testing.T) {
	h, other := open(t), open(t)
	route := rtnl.Route{Table: 1 << 20, Protocol: 91, Unreachable: true, Dst: &net.IPNet{IP: net.IP{10, 5, 0, 0}, Mask: net.CIDRMask(16, 32)}}
	stop, errs := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				var b rtnl.Batch
				b.DeleteRoute(&route)
				errs <- other.Apply(&b)
				return
			default:
			}
			var b rtnl.Batch
			b.DeleteRoute(&route)
			_, err := other.EnsureRoute(&route)
			if err := errors.Join(err, other.Apply(&b)); err != nil {
				errs <- err
				return
			}
		}
	}()
	for range 2000 {
		if _, err := h.Announce(&route); err != nil {
			t.Errorf("announce: %v", err)
			break
		}
	}
	close(stop)
	require.NoError(t, <-errs)
}

func remove(t *testing.T, h *rtnl.Host, route *rtnl.Route) {
	t.Helper()
	var b rtnl.Batch
	b.DeleteRoute(route)
	require.NoError(t, h.Apply(&b))
}
