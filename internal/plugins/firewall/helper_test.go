package firewall

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// host is a private host without rules.
type host struct {
	*testing.T
	sdk.Host
	sandboxes map[string]*sandbox.Sandbox
}

func newHost(t *testing.T) *host {
	privhost.Require(t, "iptables", "ip6tables", "nft")
	h := &host{T: t, sandboxes: map[string]*sandbox.Sandbox{}, Host: sdk.Host{Log: hclog.NewNullLogger(), Accept: iptables.NewAcceptRule()}}
	privhost.FlushRuleset(h.T)
	var err error
	h.Rules, err = ruleset.Open()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.Rules.Close())
		require.NoError(t, h.Accept.Close())
		privhost.FlushRuleset(h.T)
	})
	return h
}

func (h *host) run(command string, args ...string) string {
	h.Helper()
	cmd := exec.Command(command, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(h, err, "%s: %s", cmd, &stderr)
	return string(out)
}

// sandbox returns the namespace with a name, which the first call creates.
func (h *host) sandbox(name string) *sandbox.Sandbox {
	h.Helper()
	if h.sandboxes[name] == nil {
		s, err := sandbox.Create(name)
		require.NoError(h, err)
		h.sandboxes[name] = s
		h.Cleanup(func() { require.NoError(h, s.Destroy()) })
	}
	return h.sandboxes[name]
}

// call returns the input of an operation on the attachment of a container.
func (h *host) call(id string) *sdk.CmdArgs {
	return &sdk.CmdArgs{ContainerID: id, IfName: "eth0", Host: &h.Host}
}

// plugin parses a configuration, which must be valid.
func (h *host) plugin(conf string) sdk.Plugin {
	h.Helper()
	p, err := New([]byte(conf))
	require.NoError(h, err)
	return p
}

func (h *host) add(id, conf string) {
	h.Helper()
	result, err := h.plugin(conf).Add(context.Background(), h.call(id))
	require.NoError(h, err)
	got, err := json.Marshal(result)
	require.NoError(h, err)
	var c sdk.Common
	require.NoError(h, json.Unmarshal([]byte(conf), &c))
	require.JSONEq(h, string(c.PrevResult), string(got))
}

func (h *host) check(id, conf string) error {
	h.Helper()
	return h.plugin(conf).Check(context.Background(), h.call(id))
}

func (h *host) del(id, conf string) {
	h.Helper()
	require.NoError(h, h.plugin(conf).Del(context.Background(), h.call(id)))
}

// reference runs the reference plugin's binary.
func (h *host) reference(command, id, conf string) error {
	h.Helper()
	dir, err := refplugins.Dir()
	require.NoError(h, err)
	cmd := exec.Command(filepath.Join(dir, "firewall"))
	cmd.Stdin = strings.NewReader(conf)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+id,
		"CNI_NETNS="+h.sandbox("reference").Path(), "CNI_IFNAME=eth0", "CNI_PATH="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, &out)
	}
	return nil
}

// conf returns a configuration with additional keys and the result of a bridge
// plugin with addresses.
func conf(keys string, addresses ...string) string {
	var ips []string
	for _, address := range addresses {
		ips = append(ips, fmt.Sprintf(`{"address": %q, "interface": 2}`, address))
	}
	list := ""
	if len(ips) > 0 {
		list = `, "ips": [` + strings.Join(ips, ", ") + "]"
	}
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "firewall", %s "prevResult": {
		"cniVersion": "1.1.0",
		"interfaces": [{"name": "br0", "mac": "0a:00:00:00:00:01"}, {"name": "veth0"}, {"name": "eth0", "sandbox": "/run/netns/x"}]
		%s}}`, keys, list)
}

// rules returns the filter tables of both families, one rule per line.
func (h *host) rules() string {
	return h.run("iptables", "-S") + h.run("ip6tables", "-S")
}
