package native_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/sandbox"
)

// TestRuntimeConfig: a plugin gets the capability arguments that it declares,
// and what a network's file says of them does not stay beside.
func TestRuntimeConfig(t *testing.T) {
	w := newWorld(t)
	r := w.request(network(t, "net", "1.0.0", nil,
		with(w.fake("one"), "capabilities", object{"portMappings": true, "mac": false, "absent": true}),
		w.fake("two"),
		with(with(w.fake("three"), "capabilities", object{"mac": true}), "runtimeConfig", object{"mac": "old", "other": 1})))
	r.Capabilities = map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":80}]`), "mac": json.RawMessage(`"02:00:00:00:00:01"`)}
	w.add(r)
	require.NoError(t, w.Check(t.Context(), r))
	require.NoError(t, w.Del(t.Context(), r))
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		require.Equal(t, object{"portMappings": []any{object{"hostPort": 80.0}}}, w.stdin("one", command)["runtimeConfig"], command)
		require.NotContains(t, w.stdin("two", command), "runtimeConfig", command)
		require.Equal(t, object{"mac": "02:00:00:00:00:01"}, w.stdin("three", command)["runtimeConfig"], command)
	}
	calls, err := fakeplugin.Calls(w.log)
	require.NoError(t, err)
	for _, c := range calls {
		require.LessOrEqual(t, strings.Count(string(c.Stdin), "runtimeConfig"), 1, "%s %s: a key comes once", c.Type, c.Command)
	}
}

// TestWhatABinaryGets: the environment, the network's keys, and the result of the
// plugin before in the network's version, whoever that was.
func TestWhatABinaryGets(t *testing.T) {
	for _, test := range []struct {
		version string
		atDel   bool // whether CHECK and DEL get the result
		ip      object
	}{
		{"0.3.1", false, object{"version": "4", "address": "127.0.0.1/8", "interface": 0.0}},
		{"0.4.0", true, object{"version": "4", "address": "127.0.0.1/8", "interface": 0.0}},
		{"1.0.0", true, object{"address": "127.0.0.1/8", "interface": 0.0}},
		{"1.1.0", true, object{"address": "127.0.0.1/8", "interface": 0.0}},
	} {
		t.Run(test.version, func(t *testing.T) {
			w := newWorld(t)
			hands := object{"type": "one", "fake": fakeplugin.Config{Log: w.log}} // on what it was given
			r := w.request(network(t, "net", test.version, nil, object{"type": "loopback"}, hands))
			w.add(r)
			if test.atDel {
				require.NoError(t, w.Check(t.Context(), r))
			} else {
				require.ErrorIs(t, w.Check(t.Context(), r), engine.ErrCheckUnsupported)
			}
			require.NoError(t, w.Del(t.Context(), r))

			for _, command := range w.commands() {
				command = command[len("one "):]
				conf := w.stdin("one", command)
				require.Equal(t, []any{"net", test.version}, []any{conf["name"], conf["cniVersion"]}, command)
				if command != "ADD" && !test.atDel {
					require.NotContains(t, conf, "prevResult", command)
					continue
				}
				previous := conf["prevResult"].(object)
				require.Equal(t, test.version, previous["cniVersion"], command)
				require.Equal(t, test.ip, previous["ips"].([]any)[0], command)
			}
			calls, err := fakeplugin.Calls(w.log)
			require.NoError(t, err)
			require.Equal(t, "IgnoreUnknown=true;B=2;A=1", calls[0].Args)
			require.Equal(t, []string{"web", w.netns, "eth0"}, []string{calls[0].ID, calls[0].Netns, calls[0].IfName})
		})
	}
}

func TestDisabledCommands(t *testing.T) {
	for _, test := range []struct {
		name string
		keys object
		want []string
	}{
		{"none", nil, []string{"one ADD", "one CHECK", "one GC", "one DEL"}},
		{"CHECK", object{"disableCheck": true}, []string{"one ADD", "one GC", "one DEL"}},
		{"GC", object{"disableGC": true}, []string{"one ADD", "one CHECK", "one DEL"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			n := network(t, "net", "1.1.0", test.keys, w.fake("one"))
			r := w.request(n)
			w.add(r)
			require.NoError(t, w.Check(t.Context(), r))
			require.NoError(t, w.GC(t.Context(), w.dirs(), n, nil))
			require.NoError(t, w.Del(t.Context(), r))
			require.Equal(t, test.want, w.commands())
		})
	}
}

// TestGC: binaries know it since 1.1.0, native plugins in every version.
func TestGC(t *testing.T) {
	w := newWorld(t)
	dataDir := filepath.Join(w.dir, "leases")
	leased := object{"type": "bridge", "bridge": "br0", "ipam": object{"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": dataDir}}
	lease := filepath.Join(dataDir, "net", "10.9.0.2")
	old, today := network(t, "net", "1.0.0", nil, leased, w.fake("one")), network(t, "net", "1.1.0", nil, leased, w.fake("one"))
	w.add(w.request(old))
	valid := []types.GCAttachment{{ContainerID: "web", IfName: "eth0"}}

	require.NoError(t, w.GC(t.Context(), w.dirs(), old, valid))
	require.FileExists(t, lease)
	require.Equal(t, []string{"one ADD"}, w.commands())
	require.NoError(t, w.GC(t.Context(), w.dirs(), today, valid))
	require.FileExists(t, lease)
	require.Equal(t, []any{object{"containerID": "web", "ifname": "eth0"}}, w.stdin("one", "GC")["cni.dev/valid-attachments"])
	require.NoError(t, w.GC(t.Context(), w.dirs(), old, nil))
	require.NoFileExists(t, lease)
	require.NoError(t, w.GC(t.Context(), w.dirs(), today, nil))
	require.Equal(t, []any{}, w.stdin("one", "GC")["cni.dev/valid-attachments"], "a list in any case")
	bridge, err := netlink.LinkByName("br0")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(bridge))
}

// TestGCGoesOn after an error, and tells all of them.
func TestGCGoesOn(t *testing.T) {
	w := newWorld(t)
	n := network(t, "net", "1.1.0", nil, w.fake("one", fails("GC", 101)), w.fake("two", fails("GC", 102)), w.fake("three"))
	err := w.GC(t.Context(), w.dirs(), n, nil)
	requireCodes(t, err, 101, 102)
	require.Equal(t, []string{"one GC", "two GC", "three GC"}, w.commands())
}

func TestStatus(t *testing.T) {
	w := newWorld(t)
	n := network(t, "net", "1.1.0", nil, object{"type": "loopback"}, w.fake("one", fails("STATUS", 50)))
	requireCodes(t, w.Status(t.Context(), w.dirs(), n), 50)
	require.NoError(t, w.Status(t.Context(), w.dirs(), network(t, "net", "1.0.0", nil, w.fake("one", fails("STATUS", 50)))))
	require.Equal(t, []string{"one STATUS"}, w.commands())
}

// requireCodes finds these CNI codes in an error, in this order.
func requireCodes(t *testing.T, err error, codes ...uint) {
	t.Helper()
	var found []uint
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) {
		case *types.Error:
			found = append(found, e.Code)
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		}
	}
	walk(err)
	require.Equal(t, codes, found, "%v", err)
	var first *types.Error
	require.ErrorAs(t, err, &first)
	require.Equal(t, codes[0], first.Code)
}

// TestDelTriesEverything, last network and last plugin first. The first error
// stays first.
func TestDelTriesEverything(t *testing.T) {
	w := newWorld(t)
	r := w.request(
		network(t, "a", "1.0.0", nil, w.fake("one", fails("DEL", 101)), w.fake("two")),
		network(t, "b", "1.0.0", nil, w.fake("two", fails("DEL", 102)), w.fake("three", fails("DEL", 103))))
	err := w.Del(t.Context(), r)
	requireCodes(t, err, 103, 102, 101)
	require.ErrorContains(t, err, `DEL allocation "web": network "b"`)
	require.ErrorContains(t, err, `network "a"`)
	require.Equal(t, []string{"three DEL", "two DEL", "two DEL", "one DEL"}, w.commands())
}

func TestTwoNetworks(t *testing.T) {
	w := newWorld(t)
	a, b := network(t, "a", "1.0.0", nil, w.fake("one")), network(t, "b", "0.4.0", nil, w.fake("two"))
	r := w.request(a, b)
	w.add(r)
	require.NoError(t, w.Check(t.Context(), r))
	require.Equal(t, []string{"one ADD", "two ADD", "one CHECK", "two CHECK"}, w.commands())
	calls, err := fakeplugin.Calls(w.log)
	require.NoError(t, err)
	require.Equal(t, []string{"eth0", "eth1"}, []string{calls[0].IfName, calls[1].IfName})

	results, err := w.Add(t.Context(), w.request(a, network(t, "c", "1.0.0", nil, w.fake("three", fails("ADD", 101))), b))
	requireCodes(t, err, 101)
	require.ErrorContains(t, err, `ADD allocation "web": network "c"`)
	require.Len(t, results, 3)
	require.NotNil(t, results[0], "what became known is returned")
	require.Nil(t, results[1])
	require.Nil(t, results[2])
	require.Equal(t, "three ADD", w.commands()[len(w.commands())-1], "nothing after it")
}

// TestCheckStopsAtAFinding and names its network.
func TestCheckStopsAtAFinding(t *testing.T) {
	w := newWorld(t)
	r := w.request(network(t, "a", "1.0.0", nil, w.fake("one"), w.fake("two", fails("CHECK", 101)), w.fake("three")))
	err := w.Check(t.Context(), r)
	requireCodes(t, err, 101)
	require.ErrorContains(t, err, `CHECK allocation "web": network "a"`)
	require.Equal(t, []string{"one CHECK", "two CHECK"}, w.commands())
}

func TestInUse(t *testing.T) {
	for _, name := range []string{"eth0", "eth1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s, err := sandbox.Open(w.netns)
			require.NoError(t, err)
			defer s.Close()
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			require.NoError(t, s.Do(func() error { return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}) }))
			_, err = w.Add(t.Context(), w.request(network(t, "a", "1.0.0", nil, w.fake("one")), network(t, "b", "1.0.0", nil, w.fake("two"))))
			require.ErrorIs(t, err, engine.ErrInUse)
			require.ErrorContains(t, err, name)
			require.Empty(t, w.commands(), "nothing was begun")
		})
	}
}

// TestLoopbackIsUp also where no plugin is named that does it.
func TestLoopbackIsUp(t *testing.T) {
	w := newWorld(t)
	s, err := sandbox.Open(w.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		return netlink.LinkSetDown(lo)
	}))
	w.add(w.request(network(t, "a", "1.0.0", nil, w.fake("one"))))
	require.NoError(t, s.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NotZero(t, lo.Attrs().Flags&net.FlagUp)
		return nil
	}))
}

func TestInvalidResults(t *testing.T) {
	for name, text := range map[string]string{
		"none": " ", "of another interface": `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24","interface":7}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			results, err := w.Add(t.Context(), w.request(network(t, "a", "1.0.0", nil, w.fake("one", map[string]fakeplugin.Behaviour{"ADD": {Stdout: text}}))))
			require.ErrorContains(t, err, `ADD allocation "web": network "a"`)
			require.Equal(t, text != " ", errors.Is(err, engine.ErrInvalidResult))
			require.Nil(t, results[0])
		})
	}
}

// TestResultOfAnOldNetwork holds what the network's version can say, as if it
// had gone through a runtime, and the MTU, for the status.
func TestResultOfAnOldNetwork(t *testing.T) {
	for version, pci := range map[string]string{"0.4.0": "", "1.1.0": "0000:01:00.0"} {
		w := newWorld(t)
		newest := map[string]fakeplugin.Behaviour{"ADD": {Result: json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1400,"pciID":"0000:01:00.0"}],"dns":{}}`)}}
		r := w.request(network(t, "a", version, nil, w.fake("one", newest)))
		w.add(r)
		require.Equal(t, pci, r.Attachments[0].Result.Interfaces[0].PciID, version)
		require.Equal(t, 1400, r.Attachments[0].Result.Interfaces[0].Mtu, version)
		require.NoError(t, sandbox.Destroy(w.netns))
	}
}

func TestBinaries(t *testing.T) {
	local := object{"type": "host-local", "subnet": "10.9.0.0/24"}
	for _, test := range []struct {
		name       string
		plugins    []object
		binaries   []string
		understood bool
	}{
		{"all native", []object{{"type": "loopback"}, {"type": "bridge", "ipam": local}, {"type": "portmap"}}, nil, true},
		{"none native", []object{{"type": "macvlan", "ipam": object{"type": "dhcp"}}}, []string{"macvlan", "dhcp"}, false},
		{"binary with native IPAM", []object{{"type": "macvlan", "ipam": local}}, []string{"macvlan", "host-local"}, false},
		{"native with foreign IPAM", []object{{"type": "bridge", "ipam": object{"type": "dhcp"}}}, []string{"dhcp"}, true},
		{"unknown key", []object{{"type": "loopback"}, {"type": "tuning", "novel": 1}}, []string{"tuning"}, true},
		{"unknown key of the bridge", []object{{"type": "bridge", "novel": 1, "ipam": local}}, []string{"bridge", "host-local"}, false},
		{"unknown key of IPAM", []object{{"type": "bridge", "ipam": with(local, "novel", 1)}}, []string{"host-local"}, true},
		{"invalid, which is the plugin's to say", []object{{"type": "bridge", "vlan": "x"}}, nil, true},
		{"bare of everything", []object{{"type": "firewall"}, {"type": "odd"}}, []string{"odd"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			n := network(t, "net", "1.0.0", nil, test.plugins...)
			for range 2 { // the second time from memory
				require.Equal(t, test.binaries, w.Binaries(n))
				require.Equal(t, test.understood, w.Understands(n))
			}
		})
	}
}

// TestWhyBinaries: only what a native plugin does not understand is a reason.
func TestWhyBinaries(t *testing.T) {
	w := newWorld(t)
	local := object{"type": "host-local", "subnet": "10.9.0.0/24", "novel": 1}
	n := network(t, "net", "1.0.0", nil, object{"type": "odd"}, object{"type": "loopback", "isGatway": true}, object{"type": "bridge", "ipam": local})
	for range 2 { // the second time from memory
		require.Equal(t, []string{
			`plugin "loopback": the native plugin does not understand the key "isGatway"`,
			`plugin "host-local": the native plugin does not understand the key "novel"`,
		}, w.WhyBinaries(n))
	}
}

// TestNetworksAreToldApart by all of their text, not by their name.
func TestNetworksAreToldApart(t *testing.T) {
	w := newWorld(t)
	lists := []*conflist.Network{
		network(t, "net", "1.0.0", nil, object{"type": "loopback"}),
		network(t, "net", "1.0.0", nil, object{"type": "one"}),
	}
	require.True(t, w.Understands(lists[0]))
	require.False(t, w.Understands(lists[1]))
	for i := range 300 { // more than are remembered
		require.True(t, w.Understands(network(t, fmt.Sprintf("net%d", i), "1.0.0", nil, object{"type": "loopback"})))
	}
	require.Empty(t, w.Binaries(lists[0]))
}

// TestNamespaceIsGone: ADD says so, DEL goes on without.
func TestNamespaceIsGone(t *testing.T) {
	w := newWorld(t)
	r := w.request(network(t, "net", "1.0.0", nil, object{"type": "loopback"}, w.fake("one")))
	r.Netns = "/run/netns/gone"
	_, err := w.Add(t.Context(), r)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, w.Del(t.Context(), r))
	require.Equal(t, []string{"one DEL"}, w.commands())
}
