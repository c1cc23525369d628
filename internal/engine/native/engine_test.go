package native_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
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
// and they replace those in the network's file.
func TestRuntimeConfig(t *testing.T) {
	h := newTestHost(t)
	r := h.request(network(t, "net", "1.0.0", nil,
		with(h.fake("one"), "capabilities", object{"portMappings": true, "mac": false, "absent": true}),
		h.fake("two"),
		with(with(h.fake("three"), "capabilities", object{"mac": true}), "runtimeConfig", object{"mac": "old", "other": 1})))
	r.Capabilities = map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":80}]`), "mac": json.RawMessage(`"02:00:00:00:00:01"`)}
	h.add(r)
	require.NoError(t, h.Check(t.Context(), r))
	require.NoError(t, h.Del(t.Context(), r))
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		require.Equal(t, object{"portMappings": []any{object{"hostPort": 80.0}}}, h.stdin("one", command)["runtimeConfig"], command)
		require.NotContains(t, h.stdin("two", command), "runtimeConfig", command)
		require.Equal(t, object{"mac": "02:00:00:00:00:01"}, h.stdin("three", command)["runtimeConfig"], command)
	}
	calls, err := fakeplugin.Calls(h.log)
	require.NoError(t, err)
	for _, c := range calls {
		require.LessOrEqual(t, strings.Count(string(c.Stdin), "runtimeConfig"), 1, "%s %s: a key comes once", c.Type, c.Command)
	}
}

// TestWhatABinaryGets: a binary gets the environment, the network's keys, and
// the result of the previous plugin, native or not, in the network's version.
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
			h := newTestHost(t)
			hands := object{"type": "one", "fake": fakeplugin.Config{Log: h.log}} // returns the result that it got
			r := h.request(network(t, "net", test.version, nil, object{"type": "loopback"}, hands))
			h.add(r)
			if test.atDel {
				require.NoError(t, h.Check(t.Context(), r))
			} else {
				require.ErrorIs(t, h.Check(t.Context(), r), engine.ErrCheckUnsupported)
			}
			require.NoError(t, h.Del(t.Context(), r))

			for _, command := range h.commands() {
				command = command[len("one "):]
				conf := h.stdin("one", command)
				require.Equal(t, []any{"net", test.version}, []any{conf["name"], conf["cniVersion"]}, command)
				if command != "ADD" && !test.atDel {
					require.NotContains(t, conf, "prevResult", command)
					continue
				}
				previous := conf["prevResult"].(object)
				require.Equal(t, test.version, previous["cniVersion"], command)
				require.Equal(t, test.ip, previous["ips"].([]any)[0], command)
			}
			calls, err := fakeplugin.Calls(h.log)
			require.NoError(t, err)
			require.Equal(t, "IgnoreUnknown=true;B=2;A=1", calls[0].Args)
			require.Equal(t, []string{"web", h.netns, "eth0"}, []string{calls[0].ID, calls[0].Netns, calls[0].IfName})
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
			h := newTestHost(t)
			n := network(t, "net", "1.1.0", test.keys, h.fake("one"))
			r := h.request(n)
			h.add(r)
			require.NoError(t, h.Check(t.Context(), r))
			require.NoError(t, h.GC(t.Context(), h.dirs(), n, nil))
			require.NoError(t, h.Del(t.Context(), r))
			require.Equal(t, test.want, h.commands())
		})
	}
}

// TestGC: binaries support GC since version 1.1.0, native plugins in every
// version.
func TestGC(t *testing.T) {
	h := newTestHost(t)
	dataDir := filepath.Join(h.dir, "leases")
	leased := object{"type": "bridge", "bridge": "br0", "ipam": object{"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": dataDir}}
	lease := filepath.Join(dataDir, "net", "10.9.0.2")
	old, today := network(t, "net", "1.0.0", nil, leased, h.fake("one")), network(t, "net", "1.1.0", nil, leased, h.fake("one"))
	h.add(h.request(old))
	valid := []types.GCAttachment{{ContainerID: "web", IfName: "eth0"}}

	require.NoError(t, h.GC(t.Context(), h.dirs(), old, valid))
	require.FileExists(t, lease)
	require.Equal(t, []string{"one ADD"}, h.commands())
	require.NoError(t, h.GC(t.Context(), h.dirs(), today, valid))
	require.FileExists(t, lease)
	require.Equal(t, []any{object{"containerID": "web", "ifname": "eth0"}}, h.stdin("one", "GC")["cni.dev/valid-attachments"])
	require.NoError(t, h.GC(t.Context(), h.dirs(), old, nil))
	require.NoFileExists(t, lease)
	require.NoError(t, h.GC(t.Context(), h.dirs(), today, nil))
	require.Equal(t, []any{}, h.stdin("one", "GC")["cni.dev/valid-attachments"], "a list in any case")
	bridge, err := netlink.LinkByName("br0")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(bridge))
}

// TestGCGoesOn: GC continues after an error, and returns all errors.
func TestGCGoesOn(t *testing.T) {
	h := newTestHost(t)
	n := network(t, "net", "1.1.0", nil, h.fake("one", fails("GC", 101)), h.fake("two", fails("GC", 102)), h.fake("three"))
	err := h.GC(t.Context(), h.dirs(), n, nil)
	requireCodes(t, err, 101, 102)
	require.EqualError(t, err, "plugin \"one\": as wanted\nplugin \"two\": as wanted", "the caller names the network")
	require.Equal(t, []string{"one GC", "two GC", "three GC"}, h.commands())
}

func TestStatus(t *testing.T) {
	h := newTestHost(t)
	n := network(t, "net", "1.1.0", nil, object{"type": "loopback"}, h.fake("one", fails("STATUS", 50)))
	requireCodes(t, h.Status(t.Context(), h.dirs(), n), 50)
	require.NoError(t, h.Status(t.Context(), h.dirs(), network(t, "net", "1.0.0", nil, h.fake("one", fails("STATUS", 50)))))
	require.Equal(t, []string{"one STATUS"}, h.commands())
	absent := filepath.Join(t.TempDir(), "subnet.env")
	flannel := network(t, "net", "1.0.0", nil, object{"type": "flannel", "subnetFile": absent})
	var coded *types.Error
	require.ErrorAs(t, h.Status(t.Context(), h.dirs(), flannel), &coded)
	require.EqualValues(t, 50, coded.Code)
}

// requireCodes checks that an error contains these CNI codes in this order.
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

// TestDelTriesEverything: DEL starts with the last plugin of the last network
// and runs all of them. The first error stays first.
func TestDelTriesEverything(t *testing.T) {
	h := newTestHost(t)
	r := h.request(
		network(t, "a", "1.0.0", nil, h.fake("one", fails("DEL", 101)), h.fake("two")),
		network(t, "b", "1.0.0", nil, h.fake("two", fails("DEL", 102)), h.fake("three", fails("DEL", 103))))
	err := h.Del(t.Context(), r)
	requireCodes(t, err, 103, 102, 101)
	require.EqualError(t, err, `DEL allocation "web": network "b": plugin "three": as wanted
network "b": plugin "two": as wanted
network "a": plugin "one": as wanted`)
	require.Equal(t, []string{"three DEL", "two DEL", "two DEL", "one DEL"}, h.commands())
}

func TestTwoNetworks(t *testing.T) {
	h := newTestHost(t)
	a, b := network(t, "a", "1.0.0", nil, h.fake("one")), network(t, "b", "0.4.0", nil, h.fake("two"))
	r := h.request(a, b)
	h.add(r)
	require.NoError(t, h.Check(t.Context(), r))
	require.Equal(t, []string{"one ADD", "two ADD", "one CHECK", "two CHECK"}, h.commands())
	calls, err := fakeplugin.Calls(h.log)
	require.NoError(t, err)
	require.Equal(t, []string{"eth0", "eth1"}, []string{calls[0].IfName, calls[1].IfName})

	results, err := h.Add(t.Context(), h.request(a, network(t, "c", "1.0.0", nil, h.fake("three", fails("ADD", 101))), b))
	requireCodes(t, err, 101)
	require.EqualError(t, err, `ADD allocation "web": network "c": plugin "three": as wanted`)
	require.Len(t, results, 3)
	require.NotNil(t, results[0], "what became known is returned")
	require.Nil(t, results[1])
	require.Nil(t, results[2])
	require.Equal(t, "three ADD", h.commands()[len(h.commands())-1], "nothing after it")
}

// TestCheckGoesOn: a network without CHECK does not hide those after it.
func TestCheckGoesOn(t *testing.T) {
	for name, finding := range map[string]map[string]fakeplugin.Behaviour{"healthy": nil, "finding": fails("CHECK", 111)} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			r := h.request(network(t, "old", "0.3.1", nil, h.fake("one")),
				network(t, "new", "1.0.0", nil, h.fake("two", finding)), network(t, "older", "0.2.0", nil, h.fake("three")))
			h.add(r)
			err := h.Check(t.Context(), r)
			require.Equal(t, []string{"one ADD", "two ADD", "three ADD", "two CHECK"}, h.commands())
			if finding == nil {
				require.ErrorIs(t, err, engine.ErrCheckUnsupported)
				require.ErrorContains(t, err, `network "old"`)
				require.ErrorContains(t, err, `network "older"`)
			} else {
				require.NotErrorIs(t, err, engine.ErrCheckUnsupported, "it is no finding")
				require.ErrorContains(t, err, `network "new"`)
				require.ErrorContains(t, err, "as wanted")
			}
		})
	}
}

// TestCheckOfOldVersions: native plugins are checked in every version whose results have interfaces,
// unless a binary takes part, or CHECK is disabled. No binary gets a CHECK that its version lacks.
func TestCheckOfOldVersions(t *testing.T) {
	for name, test := range map[string]struct {
		version              string
		disabled             bool
		binary, ipam         bool // runs as a binary
		unsupported, notices bool
	}{
		"0.3.0":                       {version: "0.3.0", notices: true},
		"0.3.1":                       {version: "0.3.1", notices: true},
		"0.3.1, disabled":             {version: "0.3.1", disabled: true},
		"1.0.0, disabled":             {version: "1.0.0", disabled: true},
		"0.2.0":                       {version: "0.2.0", unsupported: true},
		"0.3.1 with a binary":         {version: "0.3.1", binary: true, unsupported: true},
		"0.3.1 with a binary as IPAM": {version: "0.3.1", ipam: true, unsupported: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			ipam := object{"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": filepath.Join(h.dir, "leases")}
			if test.ipam {
				ipam = object{"type": h.pool(`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.9.0.2/24","gateway":"10.9.0.1"}]}`)}
			}
			plugins := []object{{"type": "ptp", "ipMasq": true, "ipam": ipam}}
			if test.binary {
				plugins = append(plugins, object{"type": "one", "fake": fakeplugin.Config{Log: h.log}})
			}
			r := h.request(network(t, "net", test.version, object{"disableCheck": test.disabled}, plugins...))
			h.add(r)
			check := func() error {
				err := h.Check(t.Context(), r)
				if test.unsupported {
					require.ErrorIs(t, err, engine.ErrCheckUnsupported)
					return nil
				}
				return err
			}
			require.NoError(t, check())
			require.NoError(t, exec.Command("nft", "delete", "table", "ip", "allocnet").Run())
			err := check()
			if test.notices {
				var finding *types.Error
				require.ErrorAs(t, err, &finding)
				require.NotErrorIs(t, err, engine.ErrCheckUnsupported)
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, h.Repair(t.Context(), r))
			require.NoError(t, check())
			require.NoError(t, h.Del(t.Context(), r))
			require.NotContains(t, h.commands(), "one CHECK")
			require.NoFileExists(t, filepath.Join(h.dir, "CHECK"))
		})
	}
}

// pool installs an IPAM plugin that makes a file with the name of each command, and returns its type.
func (h *testHost) pool(result string) string {
	h.t.Helper()
	script := "#!/bin/sh\n: >" + h.dir + "/$CNI_COMMAND\n[ $CNI_COMMAND != ADD ] || echo '" + result + "'\n"
	require.NoError(h.t, os.WriteFile(filepath.Join(h.dir, "bin", "pool"), []byte(script), 0o755))
	return "pool"
}

// TestCheckStopsAtAFinding: the error names the network.
func TestCheckStopsAtAFinding(t *testing.T) {
	h := newTestHost(t)
	r := h.request(network(t, "a", "1.0.0", nil, h.fake("one"), h.fake("two", fails("CHECK", 101)), h.fake("three")))
	err := h.Check(t.Context(), r)
	requireCodes(t, err, 101)
	require.ErrorContains(t, err, `CHECK allocation "web": network "a"`)
	require.Equal(t, []string{"one CHECK", "two CHECK"}, h.commands())
}

func TestInUse(t *testing.T) {
	for _, name := range []string{"eth0", "eth1"} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			s, err := sandbox.Open(h.netns)
			require.NoError(t, err)
			defer s.Close()
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			require.NoError(t, s.Do(func() error { return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}) }))
			_, err = h.Add(t.Context(), h.request(network(t, "a", "1.0.0", nil, h.fake("one")), network(t, "b", "1.0.0", nil, h.fake("two"))))
			require.ErrorIs(t, err, engine.ErrInUse)
			require.ErrorContains(t, err, name)
			require.Empty(t, h.commands(), "nothing was begun")
		})
	}
}

// TestLoopbackIsUp: loopback is brought up even if no plugin of the network
// does so.
func TestLoopbackIsUp(t *testing.T) {
	h := newTestHost(t)
	s, err := sandbox.Open(h.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		return netlink.LinkSetDown(lo)
	}))
	h.add(h.request(network(t, "a", "1.0.0", nil, h.fake("one"))))
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
			h := newTestHost(t)
			results, err := h.Add(t.Context(), h.request(network(t, "a", "1.0.0", nil, h.fake("one", map[string]fakeplugin.Behaviour{"ADD": {Stdout: text}}))))
			require.ErrorContains(t, err, `ADD allocation "web": network "a"`)
			require.ErrorIs(t, err, engine.ErrInvalidResult)
			require.Nil(t, results[0])
		})
	}
}

// TestResultOfAnOldNetwork: the result contains what the network's version can
// express, as if it had been passed through a runtime, and the MTU, for the
// status.
func TestResultOfAnOldNetwork(t *testing.T) {
	for version, pci := range map[string]string{"0.4.0": "", "1.1.0": "0000:01:00.0"} {
		h := newTestHost(t)
		newest := map[string]fakeplugin.Behaviour{"ADD": {Result: json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1400,"pciID":"0000:01:00.0"}],"dns":{}}`)}}
		r := h.request(network(t, "a", version, nil, h.fake("one", newest)))
		h.add(r)
		require.Equal(t, pci, r.Attachments[0].Result.Interfaces[0].PciID, version)
		require.Equal(t, 1400, r.Attachments[0].Result.Interfaces[0].Mtu, version)
		require.NoError(t, sandbox.Destroy(h.netns))
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
			h := newTestHost(t)
			n := network(t, "net", "1.0.0", nil, test.plugins...)
			for range 2 { // the second run uses the cache
				require.Equal(t, test.binaries, h.Binaries(n))
				require.Equal(t, test.understood, h.Understands(n))
			}
		})
	}
}

// TestWhyBinaries: the only reason for a binary is a configuration that the
// native plugin does not support.
func TestWhyBinaries(t *testing.T) {
	h := newTestHost(t)
	local := object{"type": "host-local", "subnet": "10.9.0.0/24", "novel": 1}
	n := network(t, "net", "1.0.0", nil, object{"type": "odd"}, object{"type": "loopback", "isGatway": true}, object{"type": "bridge", "ipam": local})
	for range 2 { // the second run uses the cache
		require.Equal(t, []string{
			`plugin "loopback": the native plugin does not understand the key "isGatway"`,
			`plugin "host-local": the native plugin does not understand the key "novel"`,
		}, h.WhyBinaries(n))
	}
}

// TestNetworksAreToldApart: networks are distinguished by their whole text, not
// by their name.
func TestNetworksAreToldApart(t *testing.T) {
	h := newTestHost(t)
	lists := []*conflist.Network{
		network(t, "net", "1.0.0", nil, object{"type": "loopback"}),
		network(t, "net", "1.0.0", nil, object{"type": "one"}),
	}
	require.True(t, h.Understands(lists[0]))
	require.False(t, h.Understands(lists[1]))
	for i := range 300 { // more than the cache holds
		require.True(t, h.Understands(network(t, fmt.Sprintf("net%d", i), "1.0.0", nil, object{"type": "loopback"})))
	}
	require.Empty(t, h.Binaries(lists[0]))
}

// TestNamespaceIsGone: ADD returns an error, DEL continues without the
// namespace.
func TestNamespaceIsGone(t *testing.T) {
	h := newTestHost(t)
	r := h.request(network(t, "net", "1.0.0", nil, object{"type": "loopback"}, h.fake("one")))
	r.Netns = "/run/netns/gone"
	_, err := h.Add(t.Context(), r)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, h.Del(t.Context(), r))
	require.Equal(t, []string{"one DEL"}, h.commands())
}
