package bandwidth

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
)

// atRuntime returns the configuration with limits from the runtime.
func (h *testHost) atRuntime(l Limits) string {
	text, err := json.Marshal(l)
	require.NoError(h, err)
	return h.config(`, "runtimeConfig": {"bandwidth": ` + string(text) + `}`)
}

// limit runs Limit with the result of an ADD, and returns the new one.
func (h *testHost) limit(l Limits, result string) (string, error) {
	x := &sdk.Exec{Plugins: map[string]sdk.Factory{"bandwidth": New}, Host: h.shared}
	defer x.Close()
	_, a := sdk.CmdArgsOf(h.env("", nil), []byte(plugintest.WithPrevResult(h.T, h.atRuntime(l), result)))
	if err := x.CanLimit(h.Context(), "bandwidth", a); err != nil {
		return "", err
	}
	limited, err := x.Limit(h.Context(), "bandwidth", a)
	if err != nil {
		return "", err
	}
	converted, err := limited.GetAsVersion("1.0.0")
	require.NoError(h, err)
	text, err := json.Marshal(converted)
	require.NoError(h, err)
	return string(text), nil
}

var (
	noLimits = Limits{}
	received = Limits{IngressRate: 8_000_000, IngressBurst: 800_000}
	sent     = Limits{EgressRate: 16_000_000, EgressBurst: 400_000}
	both     = Limits{8_000_000, 800_000, 16_000_000, 400_000}
	others   = Limits{1_600_000, 160_000, 3_200_000, 80_000}
)

// TestLimit changes limits into others. Then everything is as after an ADD with them, for the
// reference plugin as well.
func TestLimit(t *testing.T) {
	all := map[string]Limits{"none": noLimits, "ingress": received, "egress": sent, "both": both, "others": others}
	want, results := map[string][]string{}, map[string]string{}
	for name, l := range all {
		h := newTestHost(t)
		out, err := h.native("ADD", h.atRuntime(l))
		require.NoError(t, err)
		want[name], results[name] = h.state(), anonymous(h, out)
		h.clear()
	}
	for from, before := range all {
		for to, after := range all {
			t.Run(from+" to "+to, func(t *testing.T) {
				h := newTestHost(t)
				result, err := h.native("ADD", h.atRuntime(before))
				require.NoError(t, err)
				for range 2 {
					result, err = h.limit(after, result)
					require.NoError(t, err)
					require.Equal(t, want[to], h.state())
					require.Equal(t, results[to], anonymous(h, result))
				}
				for name, run := range map[string]runner{"ours": ours, "theirs": theirs} {
					out, code := run(h, "CHECK", plugintest.WithPrevResult(t, h.atRuntime(after), result))
					require.Zero(t, code, "%s: %s", name, out)
				}
				out, code := theirs(h, "DEL", plugintest.WithPrevResult(t, h.atRuntime(after), result))
				require.Zero(t, code, out)
				require.NotContains(t, strings.Join(h.state(), "\n"), "ifb ")
			})
		}
	}
}

// TestLimitInPlace: other rates do not replace the token buckets.
func TestLimitInPlace(t *testing.T) {
	h := newTestHost(t)
	result, err := h.native("ADD", h.atRuntime(both))
	require.NoError(t, err)
	ifb, err := netlink.LinkByName(ifbName(testNetwork, testContainer))
	require.NoError(t, err)
	events := h.disciplineEvents()
	_, err = h.limit(others, result)
	require.NoError(t, err)
	require.Equal(t, []string{
		fmt.Sprint("new ", h.veth.Attrs().Index), fmt.Sprint("new ", ifb.Attrs().Index),
	}, events(), "nothing was deleted")
}

// disciplineEvents subscribes to changes of queueing disciplines. The result reads those that
// have happened.
func (h *testHost) disciplineEvents() func() []string {
	h.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	require.NoError(h, err)
	h.Cleanup(func() { unix.Close(fd) })
	require.NoError(h, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_TC - 1)}))
	kinds := map[uint16]string{unix.RTM_NEWQDISC: "new", unix.RTM_DELQDISC: "delete"}
	return func() (events []string) {
		buffer := make([]byte, 64<<10)
		for {
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			if err == unix.EAGAIN {
				return events
			}
			require.NoError(h, err)
			messages, err := syscall.ParseNetlinkMessage(buffer[:n])
			require.NoError(h, err)
			for _, m := range messages {
				link := binary.NativeEndian.Uint32(m.Data[4:]) // of struct tcmsg
				events = append(events, fmt.Sprint(kinds[m.Header.Type], " ", link))
			}
		}
	}
}

// TestLimitFinishes: after a part of a change, the next Limit makes the whole of it.
func TestLimitFinishes(t *testing.T) {
	for name, harm := range map[string]func(h *testHost, ifb netlink.Link) error{
		"no bucket on the veth": func(h *testHost, _ netlink.Link) error {
			return netlink.QdiscDel((&bucket{}).qdisc(h.veth.Attrs().Index))
		},
		"another discipline on the veth": func(h *testHost, _ netlink.Link) error {
			q := (&bucket{rate: 1000, burst: 1e6, limit: 3000}).qdisc(h.veth.Attrs().Index)
			q.Handle = netlink.MakeHandle(7, 0)
			return netlink.QdiscReplace(q)
		},
		"no bucket on the ifb": func(_ *testHost, ifb netlink.Link) error {
			return netlink.QdiscDel((&bucket{}).qdisc(ifb.Attrs().Index))
		},
		"no alias":              func(_ *testHost, ifb netlink.Link) error { return netlink.LinkSetAlias(ifb, "") },
		"no ifb":                func(_ *testHost, ifb netlink.Link) error { return netlink.LinkDel(ifb) },
		"no ingress discipline": func(h *testHost, _ netlink.Link) error { return netlink.QdiscDel(newIngress(h.veth.Attrs().Index)) },
		"no redirection": func(h *testHost, _ netlink.Link) error {
			filters, err := netlink.FilterList(h.veth, ingressHandle)
			require.NoError(h, err)
			return netlink.FilterDel(filters[0])
		},
	} {
		for to, after := range map[string]Limits{"none": noLimits, "others": others} {
			t.Run(name+" to "+to, func(t *testing.T) {
				added := newTestHost(t)
				_, err := added.native("ADD", added.atRuntime(after))
				require.NoError(t, err)
				want := added.state()
				added.clear()

				h := newTestHost(t)
				result, err := h.native("ADD", h.atRuntime(both))
				require.NoError(t, err)
				ifb, err := netlink.LinkByName(ifbName(testNetwork, testContainer))
				require.NoError(t, err)
				require.NoError(t, harm(h, ifb))
				result, err = h.limit(after, result)
				require.NoError(t, err)
				if name != "another discipline on the veth" || to != "none" { // it is not the plugin's
					require.Equal(t, want, h.state())
				}
				out, code := ours(h, "CHECK", plugintest.WithPrevResult(t, h.atRuntime(after), result))
				require.Zero(t, code, out)
			})
		}
	}
}

// TestLimitKeepsFilters: the end of a limit does not remove filters of other programs.
func TestLimitKeepsFilters(t *testing.T) {
	h := newTestHost(t)
	result, err := h.native("ADD", h.atRuntime(both))
	require.NoError(t, err)
	foreign := redirect(h.veth.Attrs().Index, h.veth.Attrs().Index)
	foreign.Priority = 9
	require.NoError(t, netlink.FilterAdd(foreign))
	result, err = h.limit(noLimits, result)
	require.NoError(t, err)
	left := h.filters(h.veth, map[int]string{h.veth.Attrs().Index: "itself"})
	require.Len(t, left, 1)
	require.Contains(t, left[0], "to itself")
	_, err = h.limit(both, result)
	require.NoError(t, err)
	require.Len(t, h.filters(h.veth, nil), 2)
}

// TestLimitRefused: what cannot be limited is not changed.
func TestLimitRefused(t *testing.T) {
	h := newTestHost(t)
	result := h.add(static)
	before := h.state()
	_, err := h.limit(Limits{IngressRate: 800}, result)
	require.ErrorIs(t, err, sdk.ErrInvalidLimits)
	require.ErrorContains(t, err, "a rate needs a burst")

	x := &sdk.Exec{Plugins: map[string]sdk.Factory{"bandwidth": New}, Host: h.shared}
	defer x.Close()
	for name, conf := range map[string]string{
		"bandwidth": h.config(static + runtime), "unknown key": h.config(`, "x": 1` + runtime), "other": h.config(runtime),
	} {
		plugin := "bandwidth"
		if name == "other" {
			plugin = name
		}
		_, a := sdk.CmdArgsOf(h.env("", nil), []byte(conf))
		require.ErrorIs(t, x.CanLimit(t.Context(), plugin, a), sdk.ErrCannotLimit, name)
	}

	// The second interface of a container on one network cannot have limits of its own.
	_, a := sdk.CmdArgsOf(h.env("", nil), []byte(plugintest.WithPrevResult(t, h.atRuntime(others), result)))
	a.Instance, x.Instance = "other", "other"
	_, err = x.Limit(t.Context(), "bandwidth", a)
	require.ErrorContains(t, err, "belongs to")
	require.Equal(t, before, h.state())
}

// TestSetInterface: addresses keep their interfaces.
func TestSetInterface(t *testing.T) {
	result := &types100.Result{
		Interfaces: []*types100.Interface{{Name: "a"}, {Name: "ifb"}, {Name: "ifb", Sandbox: "/x"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(0)}, {Interface: types100.Int(2)}, {}},
	}
	setInterface(result, "none", nil)
	require.Len(t, result.Interfaces, 3)
	setInterface(result, "ifb", nil)
	require.Equal(t, []*types100.Interface{{Name: "a"}, {Name: "ifb", Sandbox: "/x"}}, result.Interfaces)
	require.Equal(t, []*types100.IPConfig{{Interface: types100.Int(0)}, {Interface: types100.Int(1)}, {}}, result.IPs)
	link := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{HardwareAddr: plugintest.MAC(t, vethMAC)}}
	for range 2 {
		setInterface(result, "ifb", link)
		require.Equal(t, &types100.Interface{Name: "ifb", Mac: vethMAC}, result.Interfaces[2])
		require.Len(t, result.Interfaces, 3)
	}
}
