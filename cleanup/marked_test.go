package cleanup

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMarkedComments(t *testing.T) {
	for comment, want := range map[string]string{
		`name: "net" id: "a"`: "a", `dnat name: "net" id: "a-b"`: "a-b", `snat name: "net" id: "a"`: "a",
		`name: "net2" id: "a"`: "", `dnat name: "ne" id: "a"`: "", `name: "net" id: "a`: "", `dnat name: "net" id: "lo...`: "", "": "",
	} {
		require.Equal(t, want, commentID(comment, "net"), comment)
	}
	full := masqHash("net", "eth0", "a") + ", net: net, if: eth0, id: a"
	require.Equal(t, "a", masqHashID(full, "net"))
	for _, comment := range []string{"", full + "b", full[:len(full)-1], masqHash("net", "eth1", "a") + full[33:]} {
		require.Empty(t, masqHashID(comment, "net"), "the hashes decide: %s", comment)
	}
	require.Empty(t, masqHashID(full, "other"))
}

func TestNamedBackends(t *testing.T) {
	for config, want := range map[string]scope{
		`{"plugins": [{"type": "bridge", "ipMasq": true}, {"type": "portmap"}]}`:                                     {},
		`{"plugins": [{"type": "firewall", "backend": "iptables"}]}`:                                                 {},
		`{"plugins": [{"type": "ptp", "ipMasqBackend": "iptables"}]}`:                                                {nat: true},
		`{"plugins": [{"type": "bridge"}, {"type": "portmap", "backend": "nftables"}]}`:                              {nftables: true},
		`{"plugins": [{"type": "bridge", "ipMasqBackend": "iptables"}, {"type": "portmap", "backend": "nftables"}]}`: {nat: true, nftables: true},
		`{`: {},
	} {
		require.Equal(t, want, namedBackends([]byte(config)), config)
	}
}

func FuzzMarkedComments(f *testing.F) {
	f.Add(`name: "net" id: "a"`)
	f.Add(masqHash("net", "eth0", "a") + ", net: net, if: eth0, id: a")
	f.Fuzz(func(t *testing.T, comment string) {
		require.LessOrEqual(t, len(commentID(comment, "net")), len(comment))
		require.LessOrEqual(t, len(masqHashID(comment, "net")), len(comment))
	})
}
