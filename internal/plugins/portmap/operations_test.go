package portmap_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestResultPassesThrough(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2)
	for _, config := range []object{nil, ports("8080->80/tcp")} {
		two := two.with(config)
		out, err := two.call(h.native, "ADD")
		require.NoError(t, err)
		var result object
		require.NoError(t, json.Unmarshal(out, &result))
		require.Len(t, result["ips"], 4)
		require.Len(t, result["interfaces"], 3)
		two.do("DEL")
		requireNoElements(t, h)
	}
}

func TestPortTaken(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2).with(ports("8080->80/tcp"))
	three := h.allocation(3).with(ports("8081->80/tcp", "8080->80/tcp"))
	two.do("ADD")
	_, err := three.call(h.native, "ADD")
	require.ErrorIs(t, err, ruleset.ErrPortTaken)
	require.ErrorContains(t, err, "alloc-2")
	require.NotContains(t, h.rules(), "alloc-3")
	three.do("DEL")
	two.do("CHECK")
}

func TestNativeCheck(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2).with(ports("8080->80/tcp", "8080->80/udp"))
	two.do("ADD")
	_, err := two.with(ports("8080->80/tcp", "8081->80/udp")).call(h.native, "CHECK")
	require.ErrorIs(t, err, ruleset.ErrMissing)
	two.do("CHECK")
	privhost.FlushRuleset(h.t)
	_, err = two.call(h.native, "CHECK")
	require.ErrorIs(t, err, ruleset.ErrMissing)
	two.do("REPAIR")
	two.do("CHECK")
}

// TestDelKnowingLittle: DEL finds elements by their owner if its input lacks
// the ports.
func TestDelKnowingLittle(t *testing.T) {
	nothing := object{"prevResult": nil}
	tests := []struct {
		name string
		add  object
		del  object
	}{
		{"no result", nil, nothing},
		{"no ports", nil, ports()},
		{"no ports, no source NAT", object{"snat": false}, merge(ports(), object{"snat": false})},
		{"neither", nil, merge(ports(), nothing)},
		{"port that ADD would refuse", nil, ports("99999->80/tcp")},
		{"another address", nil, object{"prevResult": object{"cniVersion": "1.0.0", "ips": []object{}}}},
	}
	h := newTestHost(t)
	two := h.allocation(2).with(ports("8080->80/tcp", "8080->80/udp"))
	three := h.allocation(3).with(ports("9090->80/tcp"))
	three.do("ADD")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			two.with(test.add).do("ADD")
			require.Contains(t, h.rules(), "alloc-2")
			two.with(test.del).do("DEL")
			require.NotContains(t, h.rules(), "alloc-2")
		})
	}
	three.do("CHECK")
}

func TestGC(t *testing.T) {
	h := newTestHost(t)
	two, three := h.allocation(2), h.allocation(3)
	other := h.allocation(4).with(object{"name": "other"}).with(ports("8083->80/tcp"))
	two, three = two.with(ports("8080->80/tcp")), three.with(ports("8081->80/tcp"))
	for _, a := range []*allocation{two, three, other} {
		a.do("ADD")
	}
	valid := object{"cni.dev/valid-attachments": []object{{"containerID": "alloc-3", "ifname": "eth0"}}, "cniVersion": "1.1.0"}
	two.with(valid).do("GC")
	require.NotContains(t, h.rules(), "alloc-2")
	three.do("CHECK")
	other.do("CHECK")
}

func TestStatus(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2)
	for _, backend := range []object{nil, {"backend": "iptables"}, {"backend": "nftables"}} {
		two.with(backend).do("STATUS")
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir())
	two.do("STATUS")
	for _, backend := range []string{"iptables", "nftables"} {
		_, err := two.with(object{"backend": backend}).call(h.native, "STATUS")
		require.EqualValues(t, 50, code(err), backend)
	}
	t.Setenv("PATH", path)
	require.NoError(t, h.host.Rules.Close())
	_, err := two.call(h.native, "STATUS")
	require.EqualValues(t, 50, code(err))
	h.host.Rules, err = ruleset.Open()
	require.NoError(t, err)
}

// TestDelWithoutProgram: without the program, DEL succeeds only if the kernel
// shows that nothing is left.
func TestDelWithoutProgram(t *testing.T) {
	programs := map[string][]string{"iptables": {"iptables", "ip6tables"}, "nftables": {"nft"}}
	for backend, missing := range programs {
		t.Run(backend, func(t *testing.T) {
			h := newTestHost(t)
			h.clear()
			two := h.allocation(2).with(object{"backend": backend}).with(ports("8080->80/tcp"))
			path, empty := os.Getenv("PATH"), t.TempDir()
			t.Setenv("PATH", empty)
			two.do("DEL")
			t.Setenv("PATH", path)
			two.do("ADD")
			with := h.rules()
			t.Setenv("PATH", empty)
			_, err := two.call(h.native, "DEL")
			for _, program := range missing {
				require.ErrorContains(t, err, program)
			}
			t.Setenv("PATH", path)
			require.Equal(t, with, h.rules())
			two.do("DEL")
			require.NotContains(t, h.rules(), "alloc-2")
			require.NotContains(t, h.rules(), "CNI-DN-")
		})
	}
}

// TestDelWithoutIP6Tables: iptables of one family does not suffice for rules of
// the other.
func TestDelWithoutIP6Tables(t *testing.T) {
	h := newTestHost(t)
	h.clear()
	two := h.allocation(2).with(object{"backend": "iptables"}).with(ports("8080->80/tcp"))
	two.do("ADD")
	path, dir := os.Getenv("PATH"), t.TempDir()
	iptables, err := exec.LookPath("iptables")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(iptables, filepath.Join(dir, "iptables")))
	t.Setenv("PATH", dir)
	_, err = two.call(h.native, "DEL")
	require.ErrorContains(t, err, "ip6tables -t nat: chain CNI-DN-")
	t.Setenv("PATH", path)
	require.NotContains(t, h.run("iptables", "-t", "nat", "-S"), "CNI-DN-", "what can be removed is")
	two.do("DEL")
	require.NotContains(t, h.rules(), "CNI-DN-")
}

// TestAddUndone: if one family fails, the rules of the other are removed.
func TestAddUndone(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2).with(ports("8080->80/tcp"))
	for _, config := range []object{
		{"backend": "iptables", "conditionsV6": []string{"--dport", "nonsense"}},
		{"backend": "nftables", "conditionsV6": []string{"nonsense"}},
	} {
		h.clear()
		_, err := two.with(config).call(h.native, "ADD")
		require.Error(t, err)
		require.NotContains(t, h.rules(), "CNI-DN-")
		require.NotContains(t, h.rules(), "alloc-2")
	}
}
