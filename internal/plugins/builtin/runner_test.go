package builtin_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/nftables"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// runner runs plugins: the reference binaries or the native ones.
type runner struct {
	t      testing.TB
	name   string
	answer answer
	exec   *sdk.Exec // runs the native plugins
	path   string    // CNI_PATH, instead of the directory of the reference plugins
}

// answer runs a plugin on its stdin and environment, and returns its stdout.
type answer func(ctx context.Context, plugin string, conf []byte, environ []string) ([]byte, error)

// reference runs a reference plugin.
func reference(ctx context.Context, plugin string, conf []byte, environ []string) ([]byte, error) {
	exec := &pluginexec.Exec{}
	path, err := exec.FindInPath(plugin, []string{pluginDir})
	if err != nil {
		return nil, err
	}
	return exec.ExecPlugin(ctx, path, conf, environ)
}

// runners returns both runners, on one private host.
func runners(t testing.TB) (theirs, native *runner) {
	t.Helper()
	privhost.Require(t, "iptables")
	fresh(t)
	return moreRunners(t)
}

// moreRunners returns others beside those that a test has.
func moreRunners(t testing.TB) (theirs, native *runner) {
	t.Helper()
	host, err := sdk.OpenHost(hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	exec := &sdk.Exec{Plugins: builtin.Plugins, Host: host, Binary: &pluginexec.Exec{}}
	t.Cleanup(func() { require.NoError(t, exec.Close()) })
	return &runner{t: t, name: "reference", answer: reference}, &runner{t: t, name: "native", answer: exec.Answer, exec: exec}
}

// fresh removes what other tests have left.
func fresh(t testing.TB) {
	t.Helper()
	removeBridge(t)
	c, err := nftables.New()
	require.NoError(t, err)
	c.FlushRuleset()
	require.NoError(t, c.Flush())
	for _, dir := range []string{"/var/lib/cni/networks", flannelDir} {
		require.NoError(t, os.RemoveAll(dir))
	}
}

// attachment is one sandbox and its interface.
type attachment struct {
	id, netns, ifName, args string
}

// sandboxed returns an attachment with its own namespace.
func sandboxed(t testing.TB, id string) attachment {
	t.Helper()
	s, err := sandbox.Create(id)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Do(func() error {
			links, err := retry.List(netlink.LinkList)
			for _, l := range links {
				if l.Type() == "veth" { // with the namespace, the kernel deletes it later
					_ = netlink.LinkDel(l) // it may be gone
				}
			}
			return err
		}))
		require.NoError(t, s.Destroy())
	})
	return attachment{id: id, netns: s.Path(), ifName: "eth0"}
}

// run calls a plugin as a runtime does and returns what it prints.
func (r *runner) run(command string, a attachment, conf map[string]any) ([]byte, error) {
	r.t.Helper()
	data, err := json.Marshal(conf)
	require.NoError(r.t, err)
	path := r.path
	if path == "" {
		path = pluginDir
	}
	return r.answer(context.Background(), conf["type"].(string), data, []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.netns, "CNI_IFNAME=" + a.ifName,
		"CNI_ARGS=" + a.args, "CNI_PATH=" + path, "PATH=" + os.Getenv("PATH"),
	})
}

// add runs ADD, which must succeed, and returns the result as a JSON object.
func (r *runner) add(a attachment, conf map[string]any) map[string]any {
	r.t.Helper()
	out, err := r.run("ADD", a, conf)
	require.NoError(r.t, err, "%s ADD", r.name)
	_, err = create.CreateFromBytes(out)
	require.NoError(r.t, err)
	var result map[string]any
	require.NoError(r.t, json.Unmarshal(out, &result))
	return result
}

// with returns a configuration with an additional key.
func with(conf map[string]any, key string, value any) map[string]any {
	more := map[string]any{key: value}
	for k, v := range conf {
		if k != key {
			more[k] = v
		}
	}
	return more
}

// code returns the CNI error code of an error, as a runtime gets it.
func code(err error) uint {
	return sdk.AsReference(err).Code
}

// normal returns a result as text, without random names and addresses.
func normal(t testing.TB, result map[string]any, a attachment) string {
	t.Helper()
	for _, itf := range result["interfaces"].([]any) {
		itf := itf.(map[string]any)
		delete(itf, "mtu") // missing in results of the reference plugins
		if strings.HasPrefix(itf["name"].(string), "veth") {
			itf["name"] = "VETH"
		}
		if itf["mac"] != "00:00:00:00:00:00" && !strings.HasPrefix(itf["mac"].(string), "02:aa:00:00:00:") {
			itf["mac"] = "MAC"
		}
	}
	data, err := json.MarshalIndent(result, "", "  ")
	require.NoError(t, err)
	return strings.ReplaceAll(string(data), filepath.Base(a.netns), "NETNS")
}
