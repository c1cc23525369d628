package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
)

// TestLabels sets labels, changes them while the allocation is set up, and selects by them.
func TestLabels(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.sandbox("db")
	setup := []string{"setup", "web", "--network", "allocnet", "-l", "app=web", "-l", "tier=", "--json"}
	status := decode[configurator.Status](t, w.run(setup...).ok(t))
	w.run("setup", "db", "--network", "allocnet", "--label", "app=db").ok(t)
	names := func(filters ...string) string {
		args := []string{"ls", "--quiet"}
		for _, f := range filters {
			args = append(args, "--filter", "label="+f)
		}
		return w.run(args...).ok(t)
	}
	require.Equal(t, "db\nweb\n", names("app"))
	require.Equal(t, "web\n", names("app=web"))
	require.Equal(t, "web\n", names("app", "tier="))
	require.Empty(t, names("app=db", "tier"))
	require.Regexp(t, `(?m)^web .* app=web tier= +- +-$`, w.run("ls", "--wide").ok(t))
	require.Regexp(t, `(?m)^Labels +app=web tier=$`, w.run("inspect", "web").ok(t))

	require.Regexp(t, `^\S+ web is changed\n$`, w.run("set", "web", "-l", "app=front", "-l", "tier-", "-l", "example.com/zone=1", "--revision", status.Revision).ok(t))
	r := decode[configurator.Record](t, w.run("inspect", "web", "--json").ok(t))
	require.Equal(t, map[string]string{"app": "front", "example.com/zone": "1"}, r.Labels)
	require.NotEqual(t, status.Revision, r.Revision)
	require.Equal(t, "web\n", names("example.com/zone=1"))

	require.Equal(t, "revision", w.run("set", "web", "-l", "app=x", "--revision", status.Revision, "--json").failure(t, exitFailure).Kind)
	require.Equal(t, "different", w.run(setup...).failure(t, exitFailure).Kind)
	require.Equal(t, "not-found", w.run("set", "absent", "-l", "a=b", "--json").failure(t, exitNo).Kind)
	require.Equal(t, "invalid", w.run("set", "web", "-l", "a b=c", "--json").failure(t, exitUsage).Kind)
	const namespace = "kubernetes.io.namespace.allocnet/metadata.name"
	require.Contains(t, w.run("set", "web", "-l", namespace+"=shop", "--json").failure(t, exitUsage).Error, "is reserved for labels of namespaces")
	require.Contains(t, w.run("setup", "web", "-l", namespace+"=shop", "--json").failure(t, exitUsage).Error, "is reserved for labels of namespaces")
	w.run("set", "web", "-l", namespace+"=shop", "--allow-reserved-labels").ok(t)
	require.Equal(t, "web\n", names(namespace+"=shop"))
	require.Contains(t, w.run("set", "web", "-l", "app", "--json").failure(t, exitUsage).Error, "KEY-")
	require.Contains(t, w.run("setup", "web", "-l", "app", "--json").failure(t, exitUsage).Error, "KEY=VALUE")
	require.Contains(t, w.run("set", "web", "--json").failure(t, exitUsage).Error, "label bandwidth")
	for _, id := range []string{"web", "db"} {
		w.run("teardown", id).ok(t)
	}
}

// TestSetBandwidth changes the limits of an allocation, and ends them.
func TestSetBandwidth(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	require.NoError(t, os.WriteFile(filepath.Join(w.path("conf"), "30-shaped.conflist"), []byte(`{"cniVersion": "1.0.0", "name": "shaped", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "`+t.TempDir()+`", "subnet": "10.79.0.0/24"}},
		{"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`), 0o600))
	w.run("setup", "web", "--network", "shaped", "--bandwidth", "ingress=8M:800k").ok(t)
	limits := func() *configurator.Bandwidth {
		return decode[configurator.Record](t, w.run("inspect", "web", "--json").ok(t)).Bandwidth
	}
	require.Equal(t, &configurator.Bandwidth{IngressRate: 8_000_000, IngressBurst: 800_000}, limits())
	require.Regexp(t, `(?m)^Bandwidth +ingress=8M:800k$`, w.run("inspect", "web").ok(t))
	require.Regexp(t, `^\S+ web is changed\n$`, w.run("set", "web", "--bandwidth", "egress=1M,ingress=1500k:1M", "--label", "app=web").ok(t))
	require.Equal(t, &configurator.Bandwidth{IngressRate: 1_500_000, IngressBurst: 1_000_000, EgressRate: 1_000_000, EgressBurst: 1_000_000}, limits())
	require.Regexp(t, `(?m)^Bandwidth +ingress=1500k:1M,egress=1M:1M$`, w.run("inspect", "web").ok(t))
	for _, value := range []string{"", "fast", "ingress=0"} {
		require.Contains(t, w.run("set", "web", "--bandwidth", value, "--json").failure(t, exitUsage).Error, "--bandwidth")
	}
	require.Equal(t, "different", w.run("setup", "web", "--network", "shaped", "--label", "app=web", "--json").failure(t, exitFailure).Kind)
	w.run("set", "web", "--bandwidth", "none").ok(t)
	require.Nil(t, limits())
	require.Regexp(t, `(?m)^Bandwidth +-$`, w.run("inspect", "web").ok(t))
	w.run("setup", "web", "--network", "shaped", "--label", "app=web").ok(t)
	w.run("teardown", "web").ok(t)
}

// TestUnservedChange: the hint says how an allocation that is set up can get what its networks do
// not serve. Nothing in it or in the error is about the flags of setup.
func TestUnservedChange(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	write := func(plugins string) {
		t.Helper()
		require.NoError(t, os.WriteFile(w.path("conf/30-plain.conflist"), []byte(`{"cniVersion": "1.0.0", "name": "plain", "plugins": [
			{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "`+w.path("leases")+`", "subnet": "10.79.0.0/24"}}`+plugins+`]}`), 0o600))
	}
	write("")
	setup := []string{"setup", "web", "--network", "plain"}
	w.run(setup...).ok(t)
	again := "an allocation keeps the configuration of its setup: add %s to the plugins of network \"plain\", then tear the allocation down (`allocnet teardown web`) and set it up again%s"
	change := map[string][]string{
		`{"type": "policy", "capabilities": {"policy": true}}`:        {"set", "web", "--policy", "egress-only"},
		`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`:  {"set", "web", "--bandwidth", "ingress=1M"},
		`{"type": "portmap", "capabilities": {"portMappings": true}}`: {"publish", "web", "8080:80/tcp"},
	}
	or := map[string]string{"set": "; or omit the flag", "publish": ""}
	for plugin, args := range change {
		got := w.run(append(args, "--json")...).failure(t, exitUsage)
		require.Equal(t, "unserved", got.Kind)
		require.Regexp(t, `^allocation "web": no plugin of network "plain" declares `, got.Error)
		require.Equal(t, fmt.Sprintf(again, plugin, or[args[0]]), got.Hint)
	}

	for plugin := range change { // what the hints say is enough
		write("," + plugin)
		require.Equal(t, "unserved", w.run(append(change[plugin], "--json")...).failure(t, exitUsage).Kind)
		w.run("teardown", "web").ok(t)
		w.run(setup...).ok(t)
		w.run(change[plugin]...).ok(t)
		w.run("teardown", "web").ok(t)
		write("")
		w.run(setup...).ok(t)
	}
	w.run("teardown", "web").ok(t)
}

// TestUnservedAttach: a network that does not enforce the policy of an allocation.
func TestUnservedAttach(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	require.NoError(t, os.WriteFile(w.path("conf/30-plain.conflist"), []byte(`{"cniVersion": "1.0.0", "name": "plain", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "`+w.path("leases")+`", "subnet": "10.79.0.0/24"}}]}`), 0o600))
	w.run("setup", "web", "--network", "allocnet", "--policy", "egress-only").ok(t)
	got := w.run("attach", "web", "plain", "--json").failure(t, exitUsage)
	require.Equal(t, "unserved", got.Kind)
	require.NotContains(t, got.Error, "set up")
	require.Equal(t, "every network of an allocation must enforce its policy: add {\"type\": \"policy\", \"capabilities\": {\"policy\": true}} to the plugins of network \"plain\", "+
		"attach another network, or remove the policy (`allocnet set web --policy none`)", got.Hint)
	w.run("set", "web", "--policy", "none").ok(t)
	w.run("attach", "web", "plain").ok(t)
	w.run("teardown", "web").ok(t)
}
