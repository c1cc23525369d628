package cleanup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
)

// Backups are the allocation's by their names, unless one names another owner.
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
	write("id_eth3.json", `{"mtu": 1500}`) // of no interface of ours
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

func TestSpoofChainOwner(t *testing.T) {
	known := Target{ID: "a", Attachments: []Attachment{{Network: "net", IfName: "eth0"}, {Network: "net", IfName: "b-eth0"}}}
	for chain, want := range map[string][2]bool{ // with the networks, and by the ID alone
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
