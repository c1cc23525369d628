package builtin_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

func gateway() object {
	return object{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipam": hostLocal("10.9.0.0/24")}
}

// chained returns a plugin that follows the bridge.
func chained(kind string) object {
	return object{"cniVersion": "1.0.0", "name": "net", "type": kind, "runtimeConfig": object{
		"portMappings": []any{object{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}}
}

// TestDelOfAChainOfTheReference: DEL removes everything that the reference
// plugins set up before they were replaced, including the rules of portmap and
// firewall.
func TestDelOfAChainOfTheReference(t *testing.T) {
	reference, native := runners(t)
	defer removeBridge(t)
	a := sandboxed(t, "earlier")
	chain := []object{gateway(), chained("firewall"), chained("portmap")}
	var result map[string]any
	for i, conf := range chain {
		if i > 0 {
			conf = with(conf, "prevResult", result)
		}
		result = reference.add(a, conf)
	}
	rules := func() string { return output(t, "iptables-save") }
	require.Contains(t, rules(), "10.9.0.2")
	require.Contains(t, rules(), ":CNI-DN-")
	for i := range chain {
		_, err := native.run("DEL", a, with(chain[len(chain)-1-i], "prevResult", result))
		require.NoError(t, err)
	}
	require.NotContains(t, rules(), "10.9.0.2")
	require.NotContains(t, rules(), ":CNI-DN-")
	requireGone(t, a)
}

// TestDelWhereTheNamespaceWas: another file is at the path of the namespace
// now.
func TestDelWhereTheNamespaceWas(t *testing.T) {
	reference, native := runners(t)
	defer removeBridge(t)
	a := sandboxed(t, "unmounted")
	result := reference.add(a, gateway())
	file := filepath.Join(t.TempDir(), "netns")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, itf := range result["interfaces"].([]any) {
		if itf := itf.(map[string]any); itf["sandbox"] != nil {
			itf["sandbox"] = file
		}
	}
	gone := a
	gone.netns = file
	_, err := native.run("DEL", gone, with(gateway(), "prevResult", result))
	require.NoError(t, err)
	_, err = reference.run("DEL", a, with(gateway(), "prevResult", result))
	require.NoError(t, err)
}

// TestForceAddress: the bridge ends with only the gateway's address, even if it
// had another one of the same network first.
func TestForceAddress(t *testing.T) {
	reference, native := runners(t)
	for _, r := range []*runner{reference, native} {
		t.Run(r.name, func(t *testing.T) {
			defer removeBridge(t)
			require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
			output(t, "ip", "addr", "add", "10.9.0.254/24", "dev", "br0")
			a := sandboxed(t, "forced-"+r.name)
			conf := with(gateway(), "forceAddress", true)
			result := r.add(a, conf)
			addresses := output(t, "ip", "-4", "-br", "addr", "show", "br0")
			require.Contains(t, addresses, "10.9.0.1/24")
			require.NotContains(t, addresses, "10.9.0.254")
			_, err := r.run("DEL", a, with(conf, "prevResult", result))
			require.NoError(t, err)
		})
	}
}

// TestCheckBesideAListener: a packet capture on a bridge makes it promiscuous
// meanwhile, which is not a finding of CHECK.
func TestCheckBesideAListener(t *testing.T) {
	_, native := runners(t)
	defer removeBridge(t)
	a := sandboxed(t, "heard")
	conf := gateway()
	conf = with(conf, "prevResult", native.add(a, conf))
	link, err := netlink.LinkByName("br0")
	require.NoError(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	listen := &unix.PacketMreq{Ifindex: int32(link.Attrs().Index), Type: unix.PACKET_MR_PROMISC}
	require.NoError(t, unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, listen))
	_, err = native.run("CHECK", a, conf)
	require.NoError(t, err)
	_, err = native.run("DEL", a, conf)
	require.NoError(t, err)
}

// TestLeaseOfAFailedAdd: an ADD that fails after its IPAM plugin releases the
// addresses.
func TestLeaseOfAFailedAdd(t *testing.T) {
	_, native := runners(t)
	for _, kind := range []string{"bridge", "ptp"} {
		t.Run(kind, func(t *testing.T) {
			a := sandboxed(t, "failed-"+kind)
			_, err := native.run("ADD", a, object{"cniVersion": "1.0.0", "name": "net", "type": kind, "ipam": hostLocal("10.9.0.0/24"), "dns": 7})
			if link, err := netlink.LinkByName("cni0"); err == nil {
				require.NoError(t, netlink.LinkDel(link))
			}
			require.ErrorContains(t, err, "dns cannot be read")
			requireGone(t, a)
		})
	}
}

// ipamWithoutAddress is an IPAM plugin that returns no address, and records its
// calls.
type ipamWithoutAddress struct {
	cniversion.PluginDecoder
	asked []string
}

func (*ipamWithoutAddress) FindInPath(name string, _ []string) (string, error) { return name, nil }

func (i *ipamWithoutAddress) ExecPlugin(_ context.Context, _ string, _ []byte, env []string) ([]byte, error) {
	for _, kv := range env {
		if command, ok := strings.CutPrefix(kv, "CNI_COMMAND="); ok {
			i.asked = append(i.asked, command)
		}
	}
	return []byte(`{"cniVersion":"1.0.0"}`), nil
}

// TestIPAMWithoutAddress: the IPAM plugin gets a DEL for its ADD without an
// address.
func TestIPAMWithoutAddress(t *testing.T) {
	runners(t)
	a := sandboxed(t, "poor")
	ipam := &ipamWithoutAddress{}
	host, err := sdk.OpenHost(hclog.NewNullLogger())
	require.NoError(t, err)
	defer host.Close()
	exec := &sdk.Exec{Plugins: builtin.Plugins, Host: host, Binary: ipam}
	defer exec.Close()
	conf := &sdk.PluginConf{CNIVersion: "1.0.0", Text: []byte(`{"cniVersion":"1.0.0","name":"net","type":"ptp","ipam":{"type":"poor"}}`)}
	_, err = exec.Run(t.Context(), "ptp", "ADD", &sdk.CmdArgs{ContainerID: a.id, Netns: a.netns, IfName: "eth0", Conf: conf})
	require.ErrorContains(t, err, "missing IP config")
	require.Equal(t, []string{"ADD", "DEL"}, ipam.asked)
}
