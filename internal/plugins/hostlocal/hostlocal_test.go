package hostlocal

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
)

// in replaces DATA by a directory.
func in(dir, conf string) []byte { return []byte(strings.ReplaceAll(conf, "DATA", dir)) }

// load returns a plugin with a configuration.
func load(t testing.TB, dir, conf string) sdk.Plugin {
	t.Helper()
	p, err := New(in(dir, conf))
	require.NoError(t, err)
	return p
}

func container(id string) *sdk.CmdArgs {
	return &sdk.CmdArgs{ContainerID: id, IfName: "eth0", Host: &sdk.Host{Log: hclog.NewNullLogger()}}
}

// TestUnknownKeys: only unknown keys inside ipam are reported.
func TestUnknownKeys(t *testing.T) {
	for ipam, key := range map[string]string{
		subnet:                       "",
		subnet + `, "futuristic": 1`: "futuristic",
		`"ranges": [[{"subnet": "10.1.0.0/24", "exclude": []}]]`:      "exclude",
		subnet + `, "routes": [{"dst": "0.0.0.0/0", "nexthops": []}]`: "nexthops",
	} {
		p, err := New(in(t.TempDir(), conf(ipam, `"vlan": 7`)))
		require.NotNil(t, p)
		if key == "" {
			require.NoError(t, err)
			continue
		}
		var unknown *sdk.UnknownKeyError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, key, unknown.Key)
		result, err := p.Add(t.Context(), container("one"))
		require.NoError(t, err)
		require.Equal(t, "10.1.0.2/24", result.IPs[0].Address.String())
	}
}

func TestNewRefuses(t *testing.T) {
	for text, code := range map[string]uint{
		`[]`: 6, `{`: 6, `{"name": "../x", "ipam": {}}`: 4 + 3, `{"ipam": {}}`: 7,
		`{"name": "blue", "ipam": null}`: 7, `{"name": "blue", "ipam": 5}`: 6,
		conf(subnet + `, "routes": [null]`): 7, conf(subnet + `, "routes": [{}]`): 7,
		conf(subnet + `, "rangeStart": "10.1.0.255"`):    7, // past the default end
		conf(subnet, `"runtimeConfig": {"ipRanges": 7}`): 6,
	} {
		_, err := New(in(t.TempDir(), text))
		require.Error(t, err, text)
		require.Equal(t, code, plugintest.Code(err), "%s: %v", text, err)
	}
}

func TestTypedErrors(t *testing.T) {
	dir := t.TempDir()
	tiny := conf(`"subnet": "10.1.0.0/30"`)
	_, err := load(t, dir, tiny).Add(t.Context(), container("one"))
	require.NoError(t, err)
	_, err = load(t, dir, tiny).Add(t.Context(), container("one"))
	require.ErrorIs(t, err, lease.ErrDuplicate)
	_, err = load(t, dir, tiny).Add(t.Context(), container("two"))
	require.ErrorIs(t, err, lease.ErrExhausted)
	require.ErrorContains(t, err, `network "blue"`)
	two := container("two")
	two.Args = "IP=10.1.0.2"
	_, err = load(t, dir, tiny).Add(t.Context(), two)
	require.ErrorIs(t, err, lease.ErrTaken)
}

// prev returns a configuration with a previous result that contains the
// addresses.
func prev(ipam string, addrs ...string) string {
	ips := []map[string]string{}
	for _, addr := range addrs {
		ips = append(ips, map[string]string{"address": addr})
	}
	text, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "ips": ips})
	return conf(ipam, `"prevResult": `+string(text))
}

// TestCheck: CHECK reports an address of the previous result that another
// container has.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for _, id := range []string{"one", "two"} {
		_, err := load(t, dir, conf(dual)).Add(t.Context(), container(id))
		require.NoError(t, err)
	}
	for name, test := range map[string]struct{ conf, text string }{
		"no previous result":  {conf(dual), ""},
		"its own":             {prev(dual, "10.1.0.2/24", "fd00:1::2/64"), ""},
		"not of these ranges": {prev(dual, "192.168.0.2/24"), ""},
		"another's":           {prev(dual, "10.1.0.2/24", "fd00:1::3/64"), "fd00:1::3"},
		"nobody's":            {prev(dual, "10.1.0.9/24"), "10.1.0.9"},
		"cannot be read":      {conf(dual, `"prevResult": {"cniVersion": "1.0.0", "ips": 5}`), "prevResult"},
	} {
		t.Run(name, func(t *testing.T) {
			err := load(t, dir, test.conf).Check(t.Context(), container("one"))
			if test.text == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.text)
		})
	}
}

// TestDel: whatever the previous result contains, DEL releases all addresses of
// the container, and no others.
func TestDel(t *testing.T) {
	for name, text := range map[string]string{
		"no previous result": conf(dual),
		"all":                prev(dual, "10.1.0.2/24", "fd00:1::2/64"),
		"some":               prev(dual, "10.1.0.2/24"),
		"another's":          prev(dual, "10.1.0.3/24", "fd00:1::3/64"),
		"foreign":            prev(dual, "192.168.0.2/24", "192.168.0.3/24"),
		"cannot be read":     conf(dual, `"prevResult": {"cniVersion": "1.0.0", "ips": 5}`),
	} {
		for _, signed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, signed=%t", name, signed), func(t *testing.T) {
				dir := t.TempDir()
				for _, id := range []string{"one", "two"} {
					_, err := load(t, dir, conf(dual)).Add(t.Context(), container(id))
					require.NoError(t, err)
				}
				if !signed {
					require.NoError(t, os.WriteFile(filepath.Join(dir, "blue", "touched"), nil, 0o600))
					require.NoError(t, os.Remove(filepath.Join(dir, "blue", "touched")))
				}
				for range 2 {
					require.NoError(t, load(t, dir, text).Del(t.Context(), container("one")))
					require.Equal(t, map[string]string{
						"blue/10.1.0.3": "two\r\neth0", "blue/fd00:1::3": "two\r\neth0",
					}, leasesOnly(leases(t, dir)))
				}
			})
		}
	}
}

// TestDelDoesNotKnowThePlace: a configuration that does not say where the leases are is not one without leases.
func TestDelDoesNotKnowThePlace(t *testing.T) {
	dir := t.TempDir()
	_, err := native(t, call{"ADD", "one", "", conf(dual)}, dir)
	require.NoError(t, err)
	held := leases(t, dir)
	for _, bad := range []string{
		`{"cniVersion": "1.0.0", "name": "blue", "type": "host-local"}`,
		`{"cniVersion": "1.0.0", "name": "blue", "ipam": null}`,
		`{"cniVersion": "1.0.0", "name": "blue", "ipam": 7}`,
		`{"cniVersion": "1.0.0", "name": "blue", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": 7}}`,
	} {
		_, theirs := binary(t, call{"DEL", "one", "", bad}, dir)
		require.Error(t, theirs, bad)
		_, err := native(t, call{"DEL", "one", "", bad}, dir)
		var unplaced *sdk.UnplacedError
		require.ErrorAs(t, err, &unplaced, bad)
		require.ErrorContains(t, sdk.AsReference(err), "the place of the lease is not known")
		require.Equal(t, held, leases(t, dir))
	}
	_, err = native(t, call{"DEL", "one", "", conf(`"subnet": 7`)}, dir)
	require.NoError(t, err, "the place is known")
	require.Empty(t, leasesOnly(leases(t, dir)))
}

// TestDelMakesNothing: DEL on an unused network creates no files.
func TestDelMakesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	require.NoError(t, load(t, dir, conf(subnet)).Del(t.Context(), container("one")))
	require.NoError(t, load(t, dir, conf(subnet)).GC(t.Context(), &sdk.CmdArgs{}))
	require.NoError(t, load(t, dir, conf(subnet)).Status(t.Context(), &sdk.CmdArgs{}))
	require.NoDirExists(t, dir)
}

func TestStatus(t *testing.T) {
	dir := t.TempDir()
	tiny := conf(`"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/30"}]]`)
	require.NoError(t, load(t, dir, tiny).Status(t.Context(), &sdk.CmdArgs{}))
	_, err := load(t, dir, tiny).Add(t.Context(), container("one"))
	require.NoError(t, err)
	err = load(t, dir, tiny).Status(t.Context(), &sdk.CmdArgs{})
	require.EqualValues(t, types.ErrPluginNotAvailable, plugintest.Code(err))
	require.ErrorContains(t, err, "10.2.0.1-10.2.0.2")

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	err = load(t, file, conf(subnet)).Status(t.Context(), &sdk.CmdArgs{})
	require.EqualValues(t, types.ErrPluginNotAvailable, plugintest.Code(err))
}

func TestGC(t *testing.T) {
	dir := t.TempDir()
	for _, id := range []string{"one", "two", "three"} {
		_, err := load(t, dir, conf(dual)).Add(t.Context(), container(id))
		require.NoError(t, err)
	}
	valid := []types.GCAttachment{{ContainerID: "one", IfName: "eth0"}, {ContainerID: "two", IfName: "eth1"}}
	require.NoError(t, load(t, dir, conf(dual)).GC(t.Context(), &sdk.CmdArgs{Valid: valid}))
	require.Equal(t, map[string]string{
		"blue/10.1.0.2": "one\r\neth0", "blue/fd00:1::2": "one\r\neth0",
	}, leasesOnly(leases(t, dir)))
	require.NoError(t, load(t, dir, conf(dual)).GC(t.Context(), &sdk.CmdArgs{}))
	require.Empty(t, leasesOnly(leases(t, dir)))
}

// FuzzAdd: no configuration makes the plugin panic. The addresses of accepted
// configurations are in the ranges and subnets, and are not a gateway's.
func FuzzAdd(f *testing.F) {
	for _, steps := range conformance {
		for _, s := range steps {
			f.Add(s.conf, s.args)
		}
	}
	f.Fuzz(func(t *testing.T, text, args string) {
		p, err := parse([]byte(text))
		if p == nil {
			require.Error(t, err)
			return
		}
		for _, set := range p.sets {
			require.NotEmpty(t, set.set)
			for i, r := range set.set {
				require.True(t, r.First.Compare(r.Last) <= 0)
				require.True(t, set.nets[i].Contains(r.First) && set.nets[i].Contains(r.Last))
			}
		}
		p.resolvConf = ""
		p.leases, err = lease.Open(t.TempDir(), p.Name)
		require.NoError(t, err)
		c := container("one")
		c.Args = args
		result, err := p.Add(t.Context(), c)
		if err != nil {
			return
		}
		requireInRanges(t, p, result)
		_, err = json.Marshal(result)
		require.NoError(t, err)
		if p.unplaced == nil {
			require.NoError(t, p.Del(t.Context(), c))
		}
	})
}

func requireInRanges(t *testing.T, p *hostLocal, result *types100.Result) {
	t.Helper()
	require.Len(t, result.IPs, len(p.sets))
	for i, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		require.True(t, ok)
		require.True(t, p.sets[i].set.Contains(addr))
		require.NotNil(t, ip.Gateway)
		require.False(t, ip.Gateway.Equal(ip.Address.IP))
		subnet, _ := p.sets[i].find(addr)
		require.Equal(t, subnet.Masked().String(), (&net.IPNet{IP: ip.Address.IP.Mask(ip.Address.Mask), Mask: ip.Address.Mask}).String())
	}
}
