package cleanup

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/spoofcheck"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestBackups: backups belong to the allocation by their names, unless they
// name another owner.
func TestBackups(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "none")
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	own := names.Owner{Network: "net", ID: "id", IfName: "eth0"}
	write("id_eth0.json", `{"mtu": 1500, "owner": "`+own.String()+`"}`)
	write("id_eth0.json.tmp", `{"mtu": 15`)
	write("id_eth1.json", `{"mtu": 1500}`)
	write("id_eth2.json", `{"owner": "`+names.Owner{Network: "net", ID: "id", IfName: "eth2", Instance: "0123abcd"}.String()+`"}`)
	write("id_eth3.json", `{"mtu": 1500}`) // an interface that the allocation does not have
	write("other_eth0.json", `{"mtu": 1500}`)
	target := Target{ID: "id"}
	for _, ifName := range []string{"eth0", "eth1", "eth2", "../eth0"} {
		target.Attachments = append(target.Attachments, Attachment{
			Network: "net", IfName: ifName, Config: []byte(`{"plugins": [{"type": "tuning", "dataDir": "` + dir + `"}, {"type": "tuning", "dataDir": "` + other + `"}]}`),
		})
	}
	s := newSearch(target)
	found, err := s.backups.find(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"id_eth0.json", "id_eth0.json.tmp", "id_eth1.json"}, objects(sorted(found)))
	removed, err := s.backups.remove(t.Context())
	require.NoError(t, err)
	require.Equal(t, sorted(found), sorted(removed))
	found, err = s.backups.find(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	for _, kept := range []string{"id_eth2.json", "id_eth3.json", "other_eth0.json"} {
		require.FileExists(t, filepath.Join(dir, kept))
	}
}

// TestBackupsByID: without a known network, the ID in the name is sufficient,
// with any interface name.
func TestBackupsByID(t *testing.T) {
	privhost.Require(t)
	require.NoError(t, os.MkdirAll(defaultBackupDir, 0o700))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(defaultBackupDir)) })
	for _, name := range []string{"id_eth0.json", "id_eth0.json.tmp", "id_eth0.100.json", "id_a_b.json", "id_.json", "id2_eth0.json", "id_eth0.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(defaultBackupDir, name), []byte(`{"mtu": 1500}`), 0o600))
	}
	found, err := newSearch(Target{ID: "id"}).backups.find(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"id_eth0.100.json", "id_eth0.json", "id_eth0.json.tmp"}, objects(sorted(found)))
}

// TestBackupsOfUnknownInstance: while the own instance is unknown, no backup
// with an owner belongs to the allocation.
func TestBackupsOfUnknownInstance(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "id_eth0.json")
	owner := names.Owner{Network: "net", ID: "id", IfName: "eth0"}
	require.NoError(t, os.WriteFile(file, []byte(`{"owner": "`+owner.String()+`"}`), 0o600))
	s := newSearch(Target{ID: "id", Attachments: []Attachment{{
		Network: "net", IfName: "eth0", Config: []byte(`{"plugins": [{"type": "tuning", "dataDir": "` + dir + `"}]}`),
	}}})
	s.instanceErr = unix.EACCES
	found, err := s.backups.find(t.Context())
	require.ErrorIs(t, err, unix.EACCES)
	require.Empty(t, found)
	_, err = s.backups.remove(t.Context())
	require.NoError(t, err)
	require.FileExists(t, file)
}

func TestSpoofChainOwner(t *testing.T) {
	known := Target{ID: "a", Attachments: []Attachment{{Network: "net", IfName: "eth0"}, {Network: "net", IfName: "b-eth0"}}}
	for chain, want := range map[string][2]bool{ // with the networks, and with the ID alone
		"cni-br-iface-a-eth0":       {true, true},
		"cni-br-iface-a-eth0-mac":   {true, true},
		"cni-br-iface-a-eth1":       {false, true},
		"cni-br-iface-a-b-eth0":     {true, false},
		"cni-br-iface-a-b-eth0-mac": {true, false},
		"cni-br-iface-aa-eth0":      {false, false},
		"cni-br-iface-a-":           {false, false},
		"a-eth0":                    {false, false},
		"PREROUTING":                {false, false},
	} {
		require.Equal(t, want[0], newSearch(known).spoof.isOurs(chain), chain)
		require.Equal(t, want[1], newSearch(Target{ID: "a"}).spoof.isOurs(chain), chain)
	}
}

// TestSpoofRulesOfOthers: rules with the same names stay if they name another
// instance.
func TestSpoofRulesOfOthers(t *testing.T) {
	privhost.Require(t)
	owner := names.Owner{Network: "net", ID: "a", IfName: "eth0", Instance: "0123456789abcdef"}
	require.NoError(t, spoofcheck.Add(t.Context(), &spoofcheck.Port{Owner: owner, Link: "vetha", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}))
	for instance, want := range map[string]int{"": 0, owner.Instance: 3} {
		s := newSearch(Target{ID: "a", Instance: &instance, Attachments: []Attachment{
			{Network: "net", IfName: "eth0", Config: []byte(`{"plugins": [{"type": "bridge", "macspoofchk": true}]}`)},
		}})
		found, err := s.spoof.find(t.Context())
		require.NoError(t, err)
		require.Len(t, found, want)
	}
	require.NoError(t, spoofcheck.Del(t.Context(), owner))
}
