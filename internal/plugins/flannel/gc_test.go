package flannel_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/sandbox"
)

// valid returns a configuration with the valid attachments of GC.
func valid(conf object, ids ...string) object {
	list := []object{}
	for _, id := range ids {
		list = append(list, object{"containerID": id, "ifname": "eth0"})
	}
	conf["cni.dev/valid-attachments"] = list
	return conf
}

// inOther returns the host with another container.
func (h *testHost) inOther(name string) *testHost {
	h.Helper()
	other := *h
	var err error
	other.netns, err = sandbox.Create(name)
	require.NoError(h, err)
	h.Cleanup(func() { require.NoError(h, other.netns.Destroy()) })
	return &other
}

// links returns the names of the container's links.
func (h *testHost) links() string { return h.output("ip", "-n", h.netns.Name(), "-br", "link") }

// TestGC: GC removes everything of the attachments that are not valid, and nothing
// else, whatever has become of the subnets.
func TestGC(t *testing.T) {
	for name, changed := range map[string]func(h *testHost){
		"same subnets":  func(*testHost) {},
		"no subnets":    func(h *testHost) { h.subnets("") },
		"other subnets": func(h *testHost) { h.subnets(strings.ReplaceAll(subnets, "9.0", "8.0")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			goes, routed := h.inOther("goes"), h.inOther("routed")
			var err error
			h.before, err = hostsnap.Take(h.options())
			require.NoError(t, err)
			stays := h.must("ADD", "stays", h.conf(), "")
			goes.must("ADD", "goes", h.conf(), "")
			routed.must("ADD", "routed", h.conf("delegate", object{"type": "ptp"}), "")
			for file, text := range map[string]string{"foreign": `{"name":"other","type":"bridge"}`, "damaged": "{", ".x.tmp": ""} {
				require.NoError(t, os.WriteFile(h.file(file), []byte(text), 0o600))
			}
			changed(h)
			for range 2 {
				h.must("GC", "", valid(h.conf(), "stays"), "")
				require.ElementsMatch(t, []string{"stays", "foreign", "damaged", ".x.tmp"}, h.files())
				require.Contains(t, h.links(), "eth0")
				require.NotContains(t, goes.links(), "eth0")
				require.NotContains(t, routed.links(), "eth0")
				for _, id := range []string{"goes", "routed"} {
					require.NotContains(t, h.elements(), "allocnet:net/"+id+"/eth0")
				}
				require.Contains(t, h.elements(), "allocnet:net/stays/eth0")
				leases, err := os.ReadDir("/var/lib/cni/networks/net")
				require.NoError(t, err)
				require.Len(t, leases, 2+1+2, "two addresses, the lock and the last ones of both families")
			}
			h.must("DEL", "stays", h.conf(), stays)
			for _, file := range []string{"foreign", "damaged", ".x.tmp"} {
				require.NoError(t, os.Remove(h.file(file)))
			}
			h.requireNothing()
		})
	}
}

// TestGCWithoutDelegate: without subnets and files, GC cannot know the delegate.
func TestGCWithoutDelegate(t *testing.T) {
	h := newHost(t)
	h.subnets("")
	_, err := h.call("GC", "", valid(h.conf()), "")
	require.ErrorContains(t, err, "the delegate is not known: flannel has no subnet for this host: read")
}

// TestGCOfFormerDelegate: the network had another delegate, a binary.
func TestGCOfFormerDelegate(t *testing.T) {
	h, conf, log := binaryHost(t, "macvlan", "1.1.0", map[string]fakeplugin.Behaviour{
		"ADD": {Result: json.RawMessage(`{"cniVersion":"1.1.0",` + macvlanResult[1:])}, "GC": {Code: 123, Msg: "cannot", Only: 1},
	})
	h.must("ADD", "a", conf, "")
	_, err := h.call("GC", "", valid(h.conf(), "b"), "")
	require.ErrorContains(t, err, "cannot")
	require.Equal(t, []string{"a"}, h.files())
	h.must("GC", "", valid(h.conf(), "b"), "")
	calls, err := fakeplugin.Calls(log)
	require.NoError(t, err)
	require.Equal(t, "GC", calls[2].Command)
	require.Contains(t, string(calls[2].Stdin), `"cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]`)
	h.requireNothing()
}

// TestGCOfAnotherInstance: a container that has a link of another instance keeps its
// file.
func TestGCOfAnotherInstance(t *testing.T) {
	h := newHost(t)
	result := h.must("ADD", "a", h.conf(), "")
	x := &sdk.Exec{Plugins: builtin.Plugins, Host: h.shared, Instance: "other"}
	_, err := plugintest.Native(t, x, "flannel", text(t, valid(h.conf())), []string{"CNI_COMMAND=GC", "CNI_PATH=/x"})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, h.files())
	h.must("CHECK", "a", h.conf(), result)
	h.must("DEL", "a", h.conf(), result)
	h.requireNothing()
}
