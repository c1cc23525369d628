package cleanup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/lease"
)

func TestScopeOf(t *testing.T) {
	tests := []struct {
		name, config string
		want         scope
	}{
		{"nothing known", ``, everything()},
		{"broken", `{"plugins": [`, everything()},
		{"unknown plugin", `{"plugins": [{"type": "bridge"}, {"type": "calico"}]}`, everything()},
		{"unknown IPAM", `{"plugins": [{"type": "bridge", "ipam": {"type": "whereabouts"}}]}`, everything()},
		{
			"directories of known plugins beside an unknown one",
			`{"plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/x"}},
				{"type": "tuning", "dataDir": "/y"}, {"type": "calico"}]}`,
			withDirs([]string{lease.DefaultDataDir, "/x"}, []string{defaultBackupDir, "/y"}),
		},
		{
			"leases of a plugin after an unknown one",
			`{"plugins": [{"type": "calico"}, {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/x"}}]}`,
			withDirs([]string{lease.DefaultDataDir, "/x"}, []string{defaultBackupDir}),
		},
		{"links alone", `{"plugins": [{"type": "loopback"}, {"type": "ptp", "ipam": {"type": "static"}}]}`, scope{}},
		{"masquerade", `{"plugins": [{"type": "bridge", "ipMasq": true}]}`, scope{nat: true, nftables: true}},
		{
			"masquerade with iptables",
			`{"plugins": [{"type": "ptp", "ipMasq": true, "ipMasqBackend": "iptables"}]}`,
			scope{nat: true},
		},
		{
			"all with nftables",
			`{"plugins": [{"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"}, {"type": "portmap", "backend": "nftables"}]}`,
			scope{nftables: true, ports: true},
		},
		{"spoof check", `{"plugins": [{"type": "bridge", "macspoofchk": true}]}`, scope{spoofcheck: true}},
		{"tuning", `{"plugins": [{"type": "tuning"}, {"type": "tuning", "dataDir": "/x"}]}`, scope{backupDirs: []string{defaultBackupDir, "/x"}}},
		{"firewall", `{"plugins": [{"type": "firewall"}]}`, scope{filter: true, zones: []string{"trusted"}}},
		{"iptables", `{"plugins": [{"type": "firewall", "backend": "iptables", "firewalldZone": "work"}]}`, scope{filter: true}},
		{"firewalld", `{"plugins": [{"type": "firewall", "backend": "firewalld", "firewalldZone": "work"}]}`, scope{zones: []string{"work"}}},
		{
			"leases",
			`{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}},
				{"type": "macvlan", "ipam": {"type": "host-local", "dataDir": "/x"}}]}`,
			scope{dataDirs: []string{lease.DefaultDataDir, "/x"}},
		},
		{"single plugin", `{"type": "bridge", "ipMasq": true, "ipMasqBackend": "nftables"}`, scope{nftables: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, scopeOf([]byte(test.config))) })
	}
}

// withDirs returns everything in these directories.
func withDirs(data, backups []string) scope {
	s := everything()
	s.dataDirs, s.backupDirs = data, backups
	return s
}

func FuzzScopeOf(f *testing.F) {
	f.Add([]byte(`{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		require.Equal(t, scopeOf(config), scopeOf(config))
		parseResult(config)
	})
}
