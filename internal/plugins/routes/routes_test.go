package routes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// host is a private host with the links of three kinds of networks: a bridge with a VLAN
// interface, and the veth of the container "ptp".
type host struct {
	*testing.T
	sdk.Host
}

var ptpVeth = names.Owner{Network: "net", ID: "ptp", IfName: "eth0"}.Veth()

func newHost(t *testing.T) *host {
	privhost.Require(t, "nft", "ip")
	h := &host{T: t, Host: sdk.Host{Kernel: rtnl.OpenHost(), Log: hclog.NewNullLogger()}}
	var err error
	h.Rules, err = ruleset.Open()
	require.NoError(t, err)
	// A bridge takes the place of the VLAN interface, which not all kernels have.
	for _, line := range []string{
		"link add br0 type bridge", "link set br0 up", "link add br0.7 type bridge", "link set br0.7 up",
		"link add " + ptpVeth + " type veth peer v1", "link set " + ptpVeth + " up", "link set v1 up",
	} {
		h.run("ip", line)
	}
	t.Cleanup(func() {
		h.Kernel.Close()
		require.NoError(t, h.Rules.Close())
		for _, link := range []string{"br0", "br0.7", ptpVeth} {
			_ = exec.Command("ip", "link", "del", link).Run() // a test may have deleted it
		}
		h.run("nft", "flush ruleset")
	})
	return h
}

func (h *host) run(command, args string) {
	h.Helper()
	out, err := exec.Command(command, strings.Fields(args)...).CombinedOutput()
	require.NoError(h, err, "%s %s: %s", command, args, out)
}

// routes returns the routes of table 100 and the elements of allocnet's tables.
func (h *host) routes() string {
	h.Helper()
	var lines []string
	for _, family := range []string{"-4", "-6"} {
		out, _ := exec.Command("ip", family, "route", "show", "table", "100").Output() // fails without the table
		for line := range strings.Lines(string(out)) {
			line, _, _ = strings.Cut(strings.Replace(line, " linkdown", "", 1), " metric 1024")
			lines = append(lines, strings.TrimSpace(strings.Replace(line, ptpVeth, "VETH", 1)))
		}
	}
	elements, err := h.Rules.Owned(h.Context(), func(names.Owner) bool { return true })
	require.NoError(h, err)
	for _, e := range elements {
		lines = append(lines, strings.Replace(strings.Replace(e, "announced address ", "", 1), " of allocnet:net/", " of ", 1))
	}
	return strings.Join(lines, "; ")
}

// Interfaces of results.
var (
	ptp     = fmt.Sprintf(`[{"name": %q}, {"name": "eth0", "sandbox": "/run/netns/x"}]`, ptpVeth)
	bridged = `[{"name": "br0"}, {"name": "veth7"}, {"name": "eth0", "sandbox": "/run/netns/x"}]`
	shaped  = strings.Replace(bridged, `"/run/netns/x"}`, `"/run/netns/x"}, {"name": "`+names.Ifb("net", "ptp")+`"}`, 1)
	vlan    = strings.Replace(bridged, `"/run/netns/x"}`, `"/run/netns/x"}, {"name": "br0.7"}`, 1)
)

// conf returns a configuration with keys, and with a result of interfaces and addresses.
func conf(keys, interfaces string, addresses ...string) string {
	var ips []string
	for _, a := range addresses {
		i := strings.Count(interfaces[:strings.Index(interfaces, "sandbox")], "name") - 1
		ips = append(ips, fmt.Sprintf(`{"address": %q, "interface": %d}`, a, i))
	}
	list := ""
	if len(ips) > 0 {
		list = `, "ips": [` + strings.Join(ips, ", ") + "]"
	}
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "routes", %s, "prevResult": {"cniVersion": "1.1.0", "interfaces": %s%s}}`, keys, interfaces, list)
}

func (h *host) call(id string) *sdk.CmdArgs {
	return &sdk.CmdArgs{ContainerID: id, IfName: "eth0", Host: &h.Host}
}

func (h *host) plugin(conf string) *routes {
	h.Helper()
	p, err := New([]byte(conf))
	require.NoError(h, err)
	return p.(*routes)
}

func (h *host) add(id, conf string) {
	h.Helper()
	p := h.plugin(conf)
	result, err := p.Add(h.Context(), h.call(id))
	require.NoError(h, err)
	got, err := json.Marshal(result)
	require.NoError(h, err)
	require.JSONEq(h, string(p.PrevResult), string(got))
}

func TestLife(t *testing.T) {
	h := newHost(t)
	const hosts, networks = `"table": 100`, `"table": 100, "subnets": true`
	for name, c := range map[string]struct{ conf, want string }{
		"ptp":                 {conf(hosts, ptp, "10.1.0.2/16", "fd01::2/64"), "10.1.0.2 dev VETH proto 91 scope link; fd01::2 dev VETH proto 91"},
		"ptp, other protocol": {conf(hosts+`, "protocol": 200`, ptp, "10.1.0.2/16"), "10.1.0.2 dev VETH proto 200 scope link"},
		"ptp, subnets": {conf(networks, ptp, "10.1.0.2/16", "fd01::2/64"),
			"unreachable 10.1.0.0/16 proto 91; unreachable fd01::/64 dev lo proto 91; 10.1.0.2 (table 100) of ptp/eth0; fd01::2 (table 100) of ptp/eth0"},
		"ptp, subnets of one address": {conf(networks, ptp, "10.1.0.2/32"), "10.1.0.2 dev VETH proto 91 scope link"},
		"bridge": {conf(hosts, bridged, "10.1.0.2/16", "fd01::2/64"),
			"10.1.0.2 dev br0 proto 91 scope link; fd01::2 dev br0 proto 91; 10.1.0.2 (table 100) of ptp/eth0; fd01::2 (table 100) of ptp/eth0"},
		"bridge, subnets": {conf(networks, bridged, "10.1.0.2/16"), "10.1.0.0/16 dev br0 proto 91 scope link; 10.1.0.2 (table 100) of ptp/eth0"},
		"VLAN":            {conf(hosts, vlan, "10.1.0.2/16"), "10.1.0.2 dev br0.7 proto 91 scope link; 10.1.0.2 (table 100) of ptp/eth0"},
		"ifb":             {conf(hosts, shaped, "10.1.0.2/16"), "10.1.0.2 dev br0 proto 91 scope link; 10.1.0.2 (table 100) of ptp/eth0"},
		"no addresses":    {conf(hosts, bridged), ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := &host{t, h.Host}
			p, call := h.plugin(c.conf), h.call("ptp")
			require.NoError(t, p.Status(t.Context(), call))
			for _, remove := range []func(context.Context, *sdk.CmdArgs) error{p.Del, p.Disconnect} {
				h.add("ptp", c.conf)
				h.add("ptp", c.conf)
				require.Equal(t, c.want, h.routes())
				require.NoError(t, p.Check(t.Context(), call))
				require.NoError(t, remove(t.Context(), call))
				require.NoError(t, remove(t.Context(), call))
				require.Empty(t, h.routes())
				if c.want != "" {
					require.ErrorIs(t, p.Check(t.Context(), call), announce.ErrMissing)
				}
			}
		})
	}
}

// TestAddressesOfTheHost: only the addresses of the container are announced.
func TestAddressesOfTheHost(t *testing.T) {
	h := newHost(t)
	c := strings.Replace(conf(`"table": 100`, bridged, "10.1.0.2/16", "10.1.0.1/16"), `"10.1.0.1/16", "interface": 2`, `"10.1.0.1/16", "interface": 0`, 1)
	h.add("a", c)
	require.Equal(t, "10.1.0.2 dev br0 proto 91 scope link; 10.1.0.2 (table 100) of a/eth0", h.routes())
}

func TestConfigurations(t *testing.T) {
	for keys, want := range map[string]string{
		`"table": 100`: "", `"table": 4294967295, "protocol": 5`: "", `"table": 100, "protocol": null`: "",
		`"table": 0`: "table is missing", `"subnets": true`: "table is missing",
		`"table": 253`: "table 253 is one in which", `"table": 254`: "table 254 is one in which", `"table": 255`: "table 255 is one in which",
		`"table": 4294967296`: "cannot be read", `"table": -1`: "cannot be read", `"table": "main"`: "cannot be read", `"table": 100, "protocol": "bird"`: "cannot be read", `"table": 100, "protocol": 256`: "cannot be read",
		`"table": 100, "protocol": 0`: "belongs to the kernel", `"table": 100, "protocol": 2`: "belongs to the kernel", `"table": 100, "protocol": 3`: "administrators", `"table": 100, "protocol": 4`: "administrators",
		`"table": 100, "protocol": 11`: "a routing daemon", `"table": 100, "protocol": 12`: "a routing daemon", `"table": 100, "protocol": 8`: "a routing daemon", `"table": 100, "protocol": 18`: "a routing daemon", `"table": 100, "protocol": 19`: "", `"table": 100, "protocol": 42`: "a routing daemon", `"table": 100, "protocol": 99`: "a routing daemon", `"table": 100, "protocol": 185`: "", `"table": 100, "protocol": 199`: "", `"table": 100, "protocol": 186`: "a routing daemon",
		`"table": 100, "novel": 1`: `"novel"`,
	} {
		_, err := New([]byte(`{"cniVersion": "1.1.0", "name": "net", "type": "routes", ` + keys + `}`))
		if want == "" {
			require.NoError(t, err, keys)
			continue
		}
		var coded *types.Error
		if errors.As(err, &coded) {
			require.Contains(t, coded.Msg+coded.Details, want, keys)
		} else {
			require.True(t, sdk.IsUnknownKey(err), keys)
			require.ErrorContains(t, err, want, keys)
		}
	}
}

// TestUnusableResults: ADD refuses them and writes nothing; DEL has nothing to remove.
func TestUnusableResults(t *testing.T) {
	h := newHost(t)
	const keys = `"table": 100`
	for want, c := range map[string]string{
		"missing prevResult":         `{"cniVersion": "1.1.0", "name": "net", "type": "routes", "table": 100}`,
		"no interface of the host":   conf(keys, `[{"name": "eth0", "sandbox": "/run/netns/x"}]`, "10.1.0.2/16"),
		`interface "br9"`:            conf(keys, strings.Replace(bridged, "br0", "br9", 1), "10.1.0.2/16"),
		"an interface or an address": strings.Replace(conf(keys, bridged, "10.1.0.2/16"), `{"name": "br0"}`, "null", 1),
	} {
		p := h.plugin(c)
		_, err := p.Add(t.Context(), h.call("a"))
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, p.Check(t.Context(), h.call("a")), want)
		require.NoError(t, p.Del(t.Context(), h.call("a")), want)
		require.Empty(t, h.routes())
	}
}

// TestTaken: ADD fails if another program has the destination, and takes back what it has
// written.
func TestTaken(t *testing.T) {
	h := newHost(t)
	h.run("ip", "route add 10.1.0.2/32 dev br0 table 100 proto 92")
	p := h.plugin(conf(`"table": 100`, bridged, "10.1.0.3/16", "10.1.0.2/16"))
	_, err := p.Add(t.Context(), h.call("a"))
	require.ErrorIs(t, err, rtnl.ErrRouteTaken)
	require.Equal(t, "10.1.0.2 dev br0 proto 92 scope link", h.routes())
}

// TestDelWithoutResult: the elements tell what a container has, also for a configuration that
// has become invalid. Routes over its own veth go with that.
func TestDelWithoutResult(t *testing.T) {
	h := newHost(t)
	for _, bare := range []string{`"table": 100`, `"table": 254`, `"table": "x"`} {
		for _, keys := range []string{`"table": 100`, `"table": 100, "subnets": true`} {
			texts := []string{`{"cniVersion": "1.1.0", "name": "net", "type": "routes", ` + bare + `}`}
			if bare != `"table": 100` {
				texts = append(texts, conf(bare, bridged, "10.1.0.2/16", "fd01::2/64"))
			}
			for _, text := range texts {
				h.add("a", conf(keys, bridged, "10.1.0.2/16", "fd01::2/64"))
				h.add("b", conf(`"table": 100`, bridged, "10.1.0.3/16"))
				p, _ := New([]byte(text))
				require.NoError(t, p.Del(t.Context(), h.call("a")))
				require.Equal(t, "10.1.0.3 dev br0 proto 91 scope link; 10.1.0.3 (table 100) of b/eth0", h.routes(), text)
				require.NoError(t, p.Del(t.Context(), h.call("b")))
			}
		}
	}
	h.add("ptp", conf(`"table": 100`, ptp, "10.1.0.2/16"))
	require.NoError(t, h.plugin(`{"cniVersion": "1.1.0", "name": "net", "type": "routes", "table": 100}`).Del(t.Context(), h.call("ptp")))
	h.run("ip", "link del "+ptpVeth)
	require.Empty(t, h.routes())
}

// TestGC: the routes of valid attachments, of other networks and of other programs stay,
// whatever the table of the configuration is by now.
func TestGC(t *testing.T) {
	h := newHost(t)
	h.add("dead", conf(`"table": 100`, bridged, "10.1.0.2/16"))
	h.add("dead2", conf(`"table": 100, "subnets": true`, bridged, "10.2.0.2/16"))
	h.add("live", conf(`"table": 100`, bridged, "10.1.0.3/16"))
	h.add("other", strings.Replace(conf(`"table": 100`, bridged, "10.3.0.2/16"), `"name": "net"`, `"name": "net2"`, 1))
	h.run("ip", "route add 10.9.0.2/32 dev br0 table 100 proto 91")
	gc := `{"cniVersion": "1.1.0", "name": "net", "type": "routes", "table": 200}`
	for range 2 {
		require.NoError(t, h.plugin(gc).GC(t.Context(), &sdk.CmdArgs{Host: &h.Host, Valid: []types.GCAttachment{{ContainerID: "live", IfName: "eth0"}}}))
		require.Equal(t, "10.1.0.3 dev br0 proto 91 scope link; 10.3.0.2 dev br0 proto 91 scope link; 10.9.0.2 dev br0 proto 91 scope link; "+
			"10.1.0.3 (table 100) of live/eth0; 10.3.0.2 (table 100) of allocnet:net2/other/eth0", h.routes())
	}
}

// TestRestores: Repair, Bind and the objects of Wanted restore routes; Repair and Wanted have
// the elements, too.
func TestRestores(t *testing.T) {
	h := newHost(t)
	for _, c := range []string{
		conf(`"table": 100`, bridged, "10.1.0.2/16", "fd01::2/64"), conf(`"table": 100`, ptp, "10.1.0.2/16"), conf(`"table": 100, "subnets": true`, ptp, "10.1.0.2/16"),
	} {
		p, call := h.plugin(c), h.call("ptp")
		h.add("ptp", c)
		want := h.routes()
		lose := func() {
			h.run("ip", "route flush table 100")
			_ = exec.Command("ip", "-6", "route", "flush", "table", "100").Run() // there may be no such table
		}
		lose()
		require.NoError(t, p.Bind(t.Context(), call))
		require.Equal(t, want, h.routes())
		lose()
		h.run("nft", "flush ruleset")
		require.Empty(t, h.routes())
		require.NoError(t, p.Repair(t.Context(), call))
		require.Equal(t, want, h.routes())
		lose()
		w, err := p.Wanted(t.Context(), call)
		require.NoError(t, err)
		require.False(t, w.Individual)
		require.Equal(t, strings.Contains(want, "of ptp/eth0"), w.Elements != nil)
		for _, change := range []bool{true, false} {
			for _, o := range w.Objects {
				changed, err := o.Restore(t.Context())
				require.NoError(t, err)
				require.Equal(t, change, changed)
			}
		}
		require.Equal(t, want, h.routes())
		require.NoError(t, p.Del(t.Context(), call))
	}
}

// TestUnchanged: Bind of a slot with routes over a link looks only if something may have
// changed. Routes without a link are not watched.
func TestUnchanged(t *testing.T) {
	h := newHost(t)
	for keys, restores := range map[string]bool{`"table": 100`: false, `"table": 100, "subnets": true`: true} {
		c := conf(keys, ptp, "10.1.0.2/16")
		h.add("ptp", c)
		h.run("ip", "route flush table 100")
		call := h.call("ptp")
		call.Unchanged = true
		require.NoError(t, h.plugin(c).Bind(t.Context(), call))
		require.Equal(t, restores, strings.Contains(h.routes(), "proto 91"))
		require.NoError(t, h.plugin(c).Del(t.Context(), h.call("ptp")))
	}
}

// TestBridgeGone: while the bridge does not exist, only a CHECK of the container can tell what
// is missing. Its element goes with DEL all the same.
func TestBridgeGone(t *testing.T) {
	h := newHost(t)
	c := conf(`"table": 100`, bridged, "10.1.0.2/16")
	h.add("a", c)
	h.run("ip", "link del br0")
	w, err := h.plugin(c).Wanted(t.Context(), h.call("a"))
	require.NoError(t, err)
	require.True(t, w.Individual)
	require.NoError(t, h.plugin(c).Del(t.Context(), h.call("a")))
	require.Empty(t, h.routes())
}
