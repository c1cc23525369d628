package flannel_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// delegates are those that run in-process.
var delegates = map[string]object{"bridge": {}, "ptp": {"type": "ptp"}}

// TestLife: with the bridge and ptp, an attachment has the subnets of flanneld, packets
// within the cluster are not masqueraded, CHECK notices what is missing and Repair
// restores it.
func TestLife(t *testing.T) {
	for name, delegate := range delegates {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			conf := h.conf("delegate", delegate)
			result := h.must("ADD", "a", conf, "")
			for _, want := range []string{`"10.9.0.2/24"`, `"fd00:9::2/64"`, `"10.9.0.0/16"`, `"192.168.0.0/16"`, `"fd00:9::/48"`, `"mtu":1450`} {
				require.Contains(t, result, want)
			}
			for _, want := range []string{"10.9.0.0/24 . 10.9.0.0/16", "10.9.0.0/24 . 192.168.0.0/16", "fd00:9::/64 . fd00:9::/48", "allocnet:net/a/eth0"} {
				require.Contains(t, h.elements(), want)
			}
			h.must("CHECK", "a", conf, result)
			for _, set := range []string{"exempt", "masqueraded"} {
				h.output("nft", "flush", "set", "ip", "allocnet", set)
				_, err := h.call("CHECK", "a", conf, result)
				require.ErrorContains(t, err, "nftables rules are missing")
				h.must(sdk.Repair, "a", conf, result)
				h.must("CHECK", "a", conf, result)
			}
			_, err := h.call(sdk.Disconnect, "a", conf, result)
			require.ErrorIs(t, err, sdk.ErrNeedsDel)
			h.must("DEL", "a", conf, result)
			h.requireNothing()
		})
	}
}

// TestMasqueradeByFlanneld: if flanneld masquerades, the delegate does not.
func TestMasqueradeByFlanneld(t *testing.T) {
	h := newHost(t)
	h.subnets(subnets + "FLANNEL_IPMASQ=true\n")
	result := h.must("ADD", "a", h.conf(), "")
	require.NotContains(t, h.elements(), "table ip allocnet")
	h.must("DEL", "a", h.conf(), result)
	h.requireNothing()
}

// changes happen between ADD and DEL. The values report whether the file of the
// container is still used, so that DEL need not look at the subnets.
var changes = map[string]func(h *testHost){
	"nothing":              func(*testHost) {},
	"no subnets":           func(h *testHost) { h.subnets("") },
	"other subnets":        func(h *testHost) { h.subnets(strings.ReplaceAll(subnets, "9.0", "8.0")) },
	"broken subnets":       func(h *testHost) { h.subnets("FLANNEL_MTU=x\n") },
	"flanneld masquerades": func(h *testHost) { h.subnets(subnets + "FLANNEL_IPMASQ=true\n") },
}

var damages = map[string]func(h *testHost){
	"none":      func(*testHost) {},
	"lost":      func(h *testHost) { require.NoError(h, os.Remove(h.file("a"))) },
	"directory": func(h *testHost) { require.NoError(h, os.RemoveAll(h.dir)) },
	"empty":     func(h *testHost) { require.NoError(h, os.Truncate(h.file("a"), 0)) },
	"cut":       func(h *testHost) { require.NoError(h, os.Truncate(h.file("a"), 30)) },
	"too large": func(h *testHost) { require.NoError(h, os.Truncate(h.file("a"), 2<<20)) },
	"bad type": func(h *testHost) {
		require.NoError(h, os.WriteFile(h.file("a"), []byte(`{"name":"net","type":"../flannel"}`), 0o600))
	},
	"own type": func(h *testHost) {
		require.NoError(h, os.WriteFile(h.file("a"), []byte(`{"name":"net","type":"flannel","dataDir":"`+h.dir+`"}`), 0o600))
	},
	"link": func(h *testHost) {
		other := filepath.Join(h.TempDir(), "other")
		require.NoError(h, os.WriteFile(other, []byte(`{"name":"net","type":"macvlan"}`), 0o600))
		require.NoError(h, os.Remove(h.file("a")))
		require.NoError(h, os.Symlink(other, h.file("a")))
	},
	"pipe": func(h *testHost) {
		require.NoError(h, os.Remove(h.file("a")))
		require.NoError(h, unix.Mkfifo(h.file("a"), 0o600))
	},
}

// TestDelAfterDamage: DEL removes everything, whatever has become of the subnets and of
// the file, with the result of ADD or without it.
func TestDelAfterDamage(t *testing.T) {
	h := newHost(t)
	i := 0
	for name, delegate := range delegates {
		for change, changed := range changes {
			for damage, damaged := range damages {
				for _, withResult := range []bool{true, false} {
					if i++; !skip.Has(t, i, 5) {
						continue
					}
					at := []string{name, change, damage}
					conf := h.conf("delegate", delegate)
					result := h.must("ADD", "a", conf, "")
					changed(h)
					damaged(h)
					if !withResult {
						result = ""
					}
					for range 2 {
						_, err := h.call("DEL", "a", conf, result)
						require.NoError(t, err, at)
					}
					h.subnets(subnets)
					h.requireNothing()
				}
			}
		}
	}
}

// TestDelWithBrokenConfiguration: the saved configuration is enough, and so is the owner.
func TestDelWithBrokenConfiguration(t *testing.T) {
	h := newHost(t)
	for _, broken := range []object{{"delegate": 7}, {"delegate": object{"name": "x"}}, {"ipam": object{"type": "a/b"}}, {"subnetFile": 7}, {"delegate": object{"type": "a/b"}},
		{"ipam": 7}, {"ipam": object{"routes": []object{{"dst": "x"}}}}, {"runtimeConfig": 7}} {
		for _, lost := range []bool{false, true} {
			h.must("ADD", "a", h.conf(), "")
			conf := h.conf()
			for key, value := range broken {
				conf[key] = value
			}
			h.must("DEL", "b", conf, "")
			if lost {
				require.NoError(t, os.Remove(h.file("a")))
			}
			h.must("DEL", "a", conf, "")
			h.requireNothing()
		}
	}
}

// TestDelAfterKill: the process was killed after it saved the configuration, or while
// it did so.
func TestDelAfterKill(t *testing.T) {
	h := newHost(t)
	h.must("ADD", "a", h.conf(), "")
	saved, err := os.ReadFile(h.file("a"))
	require.NoError(t, err)
	h.must("DEL", "a", h.conf(), "")
	for _, name := range []string{"a", ".a.tmp"} {
		require.NoError(t, os.WriteFile(h.file(name), saved, 0o600))
		h.must("DEL", "a", h.conf(), "")
		h.requireNothing()
	}
}

// TestCheckAfterDamage: CHECK uses what ADD has saved, and without that the present
// subnets.
func TestCheckAfterDamage(t *testing.T) {
	h := newHost(t)
	result := h.must("ADD", "a", h.conf(), "")
	h.subnets("")
	h.must("CHECK", "a", h.conf(), result)
	require.NoError(t, os.Remove(h.file("a")))
	_, err := h.call("CHECK", "a", h.conf(), result)
	require.EqualValues(t, types.ErrPluginNotAvailable, plugintest.Code(err))
	require.ErrorContains(t, err, "the delegate's configuration is lost")
	h.subnets(subnets)
	h.must("CHECK", "a", h.conf(), result)
	_, err = h.call("CHECK", "a", h.conf(), "")
	require.ErrorContains(t, err, "Required prevResult missing")
	h.must("DEL", "a", h.conf(), result)
	h.requireNothing()
}

// TestFileIsReplaced: ADD makes the directory, replaces an object in the place of the
// file without following or reading it, and can be read by the owner alone.
func TestFileIsReplaced(t *testing.T) {
	h := newHost(t)
	other := filepath.Join(t.TempDir(), "other")
	for name, put := range map[string]func() error{
		"none":          func() error { return nil },
		"link":          func() error { return os.Symlink(other, h.file("a")) },
		"link of draft": func() error { return os.Symlink(other, h.file(".a.tmp")) },
		"pipe":          func() error { return unix.Mkfifo(h.file("a"), 0o666) },
		"other content": func() error { return os.WriteFile(h.file("a"), []byte("x"), 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(other, []byte("unchanged"), 0o600))
			require.NoError(t, os.RemoveAll(h.dir))
			if name != "none" {
				require.NoError(t, os.Mkdir(h.dir, 0o700))
			}
			require.NoError(t, put())
			result := h.must("ADD", "a", h.conf(), "")
			require.Equal(t, []string{"a"}, h.files())
			for path, mode := range map[string]os.FileMode{h.dir: os.ModeDir | 0o700, h.file("a"): 0o600} {
				info, err := os.Lstat(path)
				require.NoError(t, err)
				require.Equal(t, mode, info.Mode(), path)
			}
			text, err := os.ReadFile(other)
			require.NoError(t, err)
			require.Equal(t, "unchanged", string(text))
			h.must("DEL", "a", h.conf(), result)
			h.requireNothing()
		})
	}
}

// TestFailedAdd: a failed ADD leaves no file, and that of an attachment which exists
// keeps its content.
func TestFailedAdd(t *testing.T) {
	h := newHost(t)
	_, err := h.call("ADD", "a", h.conf("delegate", object{"vlan": 5000}), "")
	require.ErrorContains(t, err, "invalid VLAN ID 5000")
	h.requireNothing()

	_, err = h.call("ADD", "a", h.conf("dataDir", "/proc/self/x"), "")
	require.ErrorContains(t, err, "save the delegate's configuration")
	h.requireNothing()

	result := h.must("ADD", "a", h.conf(), "")
	saved, err := os.ReadFile(h.file("a"))
	require.NoError(t, err)
	_, err = h.call("ADD", "a", h.conf("delegate", object{"mtu": 1300}), "")
	require.ErrorContains(t, err, "delegate: ")
	kept, err := os.ReadFile(h.file("a"))
	require.NoError(t, err)
	require.Equal(t, string(saved), string(kept))
	h.must("CHECK", "a", h.conf(), result)
	h.must("DEL", "a", h.conf(), result)
	h.requireNothing()
}

// TestTwoNetworks: a container has attachments to two networks, of which the file is
// that of the last one. Each DEL removes its own.
func TestTwoNetworks(t *testing.T) {
	h := newHost(t)
	second := filepath.Join(t.TempDir(), "second.env")
	require.NoError(t, os.WriteFile(second, []byte(strings.ReplaceAll(subnets, "9", "7")), 0o644))
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		confs := []object{h.conf(), h.conf("name", "other", "subnetFile", second, "delegate", object{"type": "ptp"})}
		var results [2]string
		for i, conf := range confs {
			results[i] = h.must("ADD", "a", conf, "")
			h.output("ip", "-n", h.netns.Name(), "link", "set", "eth0", "name", []string{"first", "second"}[i])
		}
		for _, i := range order {
			h.must("DEL", "a", confs[i], results[i])
			require.NotContains(t, h.elements(), "allocnet:"+confs[i]["name"].(string)+"/a/eth0")
			require.Equal(t, order[0] == 0 && i == 0, len(h.files()) == 1)
		}
		h.requireNothing()
	}
}

// TestStatus: the plugin is not available until flanneld has a subnet, and until the
// delegate is available.
func TestStatus(t *testing.T) {
	h := newHost(t)
	h.must("STATUS", "", h.conf(), "")
	h.subnets("")
	_, err := h.call("STATUS", "", h.conf(), "")
	require.EqualValues(t, types.ErrPluginNotAvailable, plugintest.Code(err))
	require.ErrorContains(t, err, "flannel has no subnet for this host: read flannel's subnet: stat "+h.env+": no such file or directory: start flanneld")
	_, err = h.call("ADD", "a", h.conf(), "")
	require.EqualValues(t, types.ErrPluginNotAvailable, sdk.AsReference(err).Code)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "start flanneld")
	h.subnets(strings.ReplaceAll(subnets, "10.9.0.1/24", "10.9.0.0/30"))
	h.must("STATUS", "", h.conf(), "")
	result := h.must("ADD", "a", h.conf(), "")
	_, err = h.call("STATUS", "", h.conf(), "")
	require.EqualValues(t, types.ErrPluginNotAvailable, plugintest.Code(err))
	require.ErrorContains(t, err, "no free address")
	h.must("DEL", "a", h.conf(), result)
}
