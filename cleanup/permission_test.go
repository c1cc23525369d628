package cleanup

import (
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestAuditWithoutPermission: what may not be read does not count as clean.
func TestAuditWithoutPermission(t *testing.T) {
	privhost.Require(t)
	target := func(plugin string) Target {
		return Target{ID: "id", Attachments: []Attachment{{
			Network: "net", IfName: "eth0", Config: []byte(`{"plugins": [` + plugin + `]}`), Result: []byte(resultV4),
		}}}
	}
	ports := target(`{"type": "portmap", "backend": "nftables"}`)
	ports.Ports = []portmap.Mapping{{HostPort: 53, ContainerPort: 53, Protocol: "udp"}}
	t.Setenv("PATH", t.TempDir())
	for port := range 60 { // every user can see that there are none, and root without capabilities reads few
		track(t, unix.IPPROTO_TCP, fmt.Sprintf("192.0.2.1:%d", 1+port), "192.0.2.2:2", "192.0.2.2:2")
	}
	t.Cleanup(func() { require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	for name, target := range map[string]Target{
		"connections": ports,
		"iptables":    target(`{"type": "bridge", "ipMasq": true, "ipMasqBackend": "iptables"}`),
		"nftables":    target(`{"type": "bridge", "ipMasq": true, "ipMasqBackend": "nftables"}`),
		"macspoofchk": target(`{"type": "bridge", "macspoofchk": true}`),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSearch(target)
			s.addResultAddresses()
			finders := map[string]finder{"connections": &s.conntrack, "iptables": &s.iptables, "nftables": &s.nftables, "macspoofchk": &s.spoof}
			// The sockets of the process are opened here with its permissions. The kernel checks those of the
			// caller, too.
			_, err := finders[name].find(t.Context())
			require.NoError(t, err)
			privhost.Unprivileged(t, func() { _, err = finders[name].find(t.Context()) })
			require.ErrorIs(t, err, fs.ErrPermission)
		})
	}
}
