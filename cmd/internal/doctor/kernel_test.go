package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestKernelFeatures: a feature is missing if ip cannot make such a link either.
func TestKernelFeatures(t *testing.T) {
	missing := 0
	for kind, command := range map[string]string{
		"macvlan": "link add x link v0 type macvlan", "ipvlan": "link add x link v0 type ipvlan",
		"vlan": "link add x link v0 type vlan id 7", "dummy": "link add x type dummy", "vrf": "link add x type vrf table 7",
	} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			r.all = true
			r.plugin(kind, `echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'`)
			r.network("20-odd", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "odd", "plugins": [{"type": %q}]}`, kind))
			r.sh("ip netns add try; ip -n try link add v0 type veth peer v1")
			if exec.Command("sh", "-c", "ip -n try "+command).Run() == nil {
				r.healthy()
				return
			}
			missing++
			found := r.finds("kernel-feature", []string{"the kernel has no " + kind, "networks need: odd"})
			require.Contains(t, found.Repair, "modprobe --all "+module(kind))
		})
	}
	t.Logf("features that this kernel lacks: %d", missing)
}

// module returns the kernel module of a kind of link.
func module(kind string) string {
	if kind == "vlan" {
		return "8021q"
	}
	return kind
}

// TestPolicyFeatures: what policies need is tried for networks that have the plugin.
func TestPolicyFeatures(t *testing.T) {
	r := newRig(t)
	r.all = true
	r.network("20-odd", r.chain("odd", "odd0", "10.78.0.0/24", `, {"type": "policy", "capabilities": {"policy": true}}`))
	if netfilter.MayHaveBridgeNetfilter() != nil {
		r.finds("kernel-feature", []string{"the kernel has no rules of IP within bridges", "networks need: odd"})
		return
	}
	r.healthy()
}

func TestVLANFiltering(t *testing.T) {
	r := newRig(t)
	r.all = true
	r.network("20-odd", strings.Replace(r.bridge("odd", "odd0", "10.78.0.0/24"), `"isGateway": true`, `"isGateway": true, "vlan": 7`, 1))
	if exec.Command("sh", "-c", "ip link add x type bridge vlan_filtering 1 && ip link del x").Run() == nil {
		r.healthy()
		return
	}
	r.finds("kernel-feature", []string{"the kernel has no bridge VLAN filtering"}, "plugin-missing")
}

// TestNFTablesRefused: without the right to change rules, the tables cannot be made.
func TestNFTablesRefused(t *testing.T) {
	privhost.Require(t)
	var err error
	privhost.Unprivileged(t, func() { err = tryRuleset(context.Background()) })
	require.ErrorContains(t, err, "not permitted")
}

// TestKindsAreDocumentedAndTested: the manual and the tests name every kind of findings.
func TestKindsAreDocumentedAndTested(t *testing.T) {
	manual, err := os.ReadFile("../../../docs/troubleshooting.md")
	require.NoError(t, err)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	tests := ""
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		tests += string(text)
	}
	for _, k := range Kinds {
		require.Contains(t, string(manual), "`"+k.ID+"`", "docs/troubleshooting.md")
		switch k.ID {
		case "privileges", "nftables", "inotify-full": // their checks are tested directly
		default:
			require.Contains(t, tests, `"`+k.ID+`"`, "a test breaks it")
		}
	}
}
