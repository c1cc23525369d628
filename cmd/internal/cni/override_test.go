package cni

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
)

// TestNetnsOverride: the host's own namespace is set up only if root requests
// it, and only by native plugins.
func TestNetnsOverride(t *testing.T) {
	w := newWorkspace(t, configurator.EngineAuto)
	w.network("mixed", `"1.0.0"`, w.bridge("brcni", "10.66.0.0/24"), w.fake("one", nil))
	conf := ours("1.1.0", `"delegate":"br"`)
	e := Env{Command: "ADD", ContainerID: "c1", Netns: "/proc/self/ns/net", IfName: "over0"}
	require.EqualValues(t, CodeInvalidNetns, w.refuse(e, conf).Code)
	e.NetnsOverride = "0"
	require.EqualValues(t, CodeInvalidNetns, w.refuse(e, conf).Code)
	e.NetnsOverride = "True"
	response := w.Serve(t.Context(), Request{Env: e, Config: json.RawMessage(conf), Conflists: true})
	require.NotNil(t, response.Error, "of another than root it does not count")
	require.EqualValues(t, CodeInvalidNetns, response.Error.Code)
	require.Contains(t, w.refuse(e, ours("1.1.0", `"delegate":"mixed"`)).Error(), "only native plugins")
	require.Empty(t, w.records())

	w.serve(e, conf)
	link, err := netlink.LinkByName("over0")
	require.NoError(t, err)
	addresses, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	require.NoError(t, err)
	require.Len(t, addresses, 1)
	w.serve(e, conf)
	w.serve(as(e, "CHECK"), conf)
	e.NetnsOverride = "" // DEL works without it
	w.serve(as(e, "DEL"), conf)
	_, err = netlink.LinkByName("over0")
	require.ErrorAs(t, err, new(netlink.LinkNotFoundError))
	require.Empty(t, w.records())
}
