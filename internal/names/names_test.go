package names_test

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
)

func TestOwnerReadsBack(t *testing.T) {
	long := strings.Repeat("n", 60)
	for _, c := range []struct {
		owner names.Owner
		text  string
	}{
		{names.Owner{Network: "net", ID: "web-1", IfName: "eth0"}, "allocnet:net/web-1/eth0"},
		{names.Owner{Network: "net", ID: "web-1", IfName: "eth0", Instance: "0a1b"}, "allocnet:net/web-1/eth0:0a1b"},
		{names.Owner{Network: "net", ID: strings.Repeat("f", 64), IfName: "eth0"}, "allocnet:net/" + strings.Repeat("f", 64) + "/eth0"},
	} {
		require.Equal(t, c.text, c.owner.String())
		read, ok := names.ParseOwner(c.text)
		require.True(t, ok)
		require.Equal(t, c.owner, read)
	}
	// What does not fit stands as a hash, and is still known again.
	big := names.Owner{Network: long, ID: strings.Repeat("f", 64), IfName: "eth0", Instance: "0a1b"}
	require.LessOrEqual(t, len(big.String()), 127, "nft shows comments of this length")
	read, ok := names.ParseOwner(big.String())
	require.True(t, ok)
	require.True(t, names.IsHash(read.ID))
	require.True(t, read.OfNetwork(long))
	require.True(t, read.OfID(big.ID))
	require.False(t, read.OfNetwork(long+"x"))
	require.False(t, read.OfID("other"))
	require.Equal(t, "0a1b", read.Instance)
}

func TestParseOwnerRefusesOthers(t *testing.T) {
	for _, text := range []string{"", "web", "allocnet:", "allocnet:net/web", "allocnet:a/b/c/d", "docker:a/b/c"} {
		_, ok := names.ParseOwner(text)
		require.False(t, ok, text)
	}
}

// TestVethNames: an interface's name, different for whatever makes two owners
// different, also where parts run into each other.
func TestVethNames(t *testing.T) {
	seen := map[string]names.Owner{}
	for _, o := range []names.Owner{
		{Network: "net", ID: "a", IfName: "eth0"},
		{Network: "net", ID: "a", IfName: "eth1"},
		{Network: "net2", ID: "a", IfName: "eth0"},
		{Network: "net", ID: "ab", IfName: "eth0"},
		{Network: "net", ID: "a", IfName: "eth0", Instance: "i"},
	} {
		name := o.Veth()
		require.Nil(t, utils.ValidateInterfaceName(name))
		require.Len(t, name, 15, "IFNAMSIZ without the zero")
		require.True(t, strings.HasPrefix(name, "veth"))
		require.NotContains(t, seen, name)
		require.Equal(t, name, o.Veth())
		seen[name] = o
	}
}

func FuzzParseOwner(f *testing.F) {
	f.Add("allocnet:net/web/eth0:i")
	f.Fuzz(func(t *testing.T, text string) {
		if o, ok := names.ParseOwner(text); ok && len(text) < 100 && o.Instance != "" {
			require.Equal(t, text, o.String())
		}
	})
}
