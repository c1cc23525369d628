package subnetenv

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range list {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

const v4Env = `FLANNEL_NETWORK=10.1.0.0/16
FLANNEL_SUBNET=10.1.17.1/24
FLANNEL_MTU=1472
FLANNEL_IPMASQ=true
`

const dualEnv = `FLANNEL_NETWORK=10.1.0.0/16,192.168.0.0/16,10.1.0.0/16
FLANNEL_SUBNET=10.1.17.1/24
FLANNEL_IPV6_NETWORK=fc00::/48
FLANNEL_IPV6_SUBNET=fc00::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=false
`

// TestParseEnv: the subnets lose the address of flannel's interface, lists lose
// duplicates, a later line replaces an earlier one, and foreign lines do not matter.
func TestParseEnv(t *testing.T) {
	v4 := Env{
		Networks: prefixes("10.1.0.0/16"), Subnet: netip.MustParsePrefix("10.1.17.0/24"), MTU: 1472, IPMasq: true,
	}
	other := v4
	other.IPMasq = false
	for name, c := range map[string]struct {
		text string
		want Env
	}{
		"IPv4": {v4Env, v4},
		"IPv6": {"FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\nFLANNEL_MTU=1280\nFLANNEL_IPMASQ=true", Env{
			IPv6Networks: prefixes("fc00::/48"), IPv6Subnet: netip.MustParsePrefix("fc00::/64"), MTU: 1280, IPMasq: true,
		}},
		"dual stack": {dualEnv, Env{
			Networks: prefixes("10.1.0.0/16", "192.168.0.0/16"), Subnet: netip.MustParsePrefix("10.1.17.0/24"),
			IPv6Networks: prefixes("fc00::/48"), IPv6Subnet: netip.MustParsePrefix("fc00::/64"), MTU: 1450,
		}},
		"other lines":      {"\n# a comment\nFLANNELD_PUBLIC_IP\nOTHER=x\n" + v4Env, v4},
		"DOS lines":        {"FLANNEL_NETWORK=10.1.0.0/16\r\nFLANNEL_SUBNET=10.1.17.1/24\r\nFLANNEL_MTU=1472\r\nFLANNEL_IPMASQ=true\r\n", v4},
		"twice":            {"FLANNEL_MTU=9000\nFLANNEL_SUBNET=10.1.1.1/24\n" + v4Env, v4},
		"no other boolean": {v4Env + "FLANNEL_IPMASQ=1\n", other},
	} {
		t.Run(name, func(t *testing.T) {
			env, err := ParseEnv("subnet.env", []byte(c.text))
			require.NoError(t, err)
			require.Equal(t, c.want, env)
		})
	}
}

// TestEnvErrors: an error names the file, the line and what to do.
func TestEnvErrors(t *testing.T) {
	const correct = ": correct it, or restart flanneld, which writes the file"
	for text, want := range map[string]string{
		"":        "/e has no FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK, no FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET, no FLANNEL_MTU, no FLANNEL_IPMASQ" + correct,
		"foo=bar": "/e has no FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK, no FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET, no FLANNEL_MTU, no FLANNEL_IPMASQ" + correct,
		"FLANNEL_NETWORK=10.0.0.0/8\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1": "/e has no FLANNEL_IPMASQ" + correct,
		v4Env + "FLANNEL_MTU=-1":                  `/e:5: FLANNEL_MTU: "-1" is not the number of an MTU` + correct,
		"\nFLANNEL_MTU=99999999999":               `/e:2: FLANNEL_MTU: "99999999999" is not the number of an MTU` + correct,
		"FLANNEL_SUBNET=10.1.17.1":                `/e:1: FLANNEL_SUBNET: "10.1.17.1" is not a network such as 10.244.0.0/16, or fd00:10:244::/48 for IPv6` + correct,
		"FLANNEL_IPV6_SUBNET=":                    `/e:1: FLANNEL_IPV6_SUBNET: "" is not a network such as 10.244.0.0/16, or fd00:10:244::/48 for IPv6` + correct,
		"FLANNEL_NETWORK=10.0.0.0/8, 11.0.0.0/8":  `/e:1: FLANNEL_NETWORK: " 11.0.0.0/8" is not a network such as 10.244.0.0/16, or fd00:10:244::/48 for IPv6` + correct,
		"FLANNEL_IPV6_NETWORK=fc00::/48,fc01::/x": `/e:1: FLANNEL_IPV6_NETWORK: "fc01::/x" is not a network such as 10.244.0.0/16, or fd00:10:244::/48 for IPv6` + correct,
		"FLANNEL_SUBNET=0.0.0.0/0":                `/e:1: FLANNEL_SUBNET: 0.0.0.0/0 overlaps 0.0.0.0/8, this host on this network` + correct,
		"FLANNEL_SUBNET=127.0.0.1/24":             `/e:1: FLANNEL_SUBNET: 127.0.0.1/24 overlaps 127.0.0.0/8, the loopback addresses` + correct,
		"FLANNEL_NETWORK=0.0.0.0/0":               `/e:1: FLANNEL_NETWORK: 0.0.0.0/0 overlaps 0.0.0.0/8, this host on this network` + correct,
		"FLANNEL_IPV6_SUBNET=fe80::1/64":          `/e:1: FLANNEL_IPV6_SUBNET: fe80::1/64 overlaps fe80::/10, the link-local addresses` + correct,
		"FLANNEL_SUBNET=fc00::1/64":               `/e:1: FLANNEL_SUBNET: "fc00::1/64" is not a network such as 10.244.0.0/16, or fd00:10:244::/48 for IPv6` + correct,
		"FLANNEL_IPV6_NETWORK=10.1.0.0/16":        `/e:1: FLANNEL_IPV6_NETWORK: "10.1.0.0/16" is not a network such as 10.244.0.0/16, or fd00:10:244::/48 for IPv6` + correct,
		v4Env + "FLANNEL_SUBNET=10.2.0.1/24":      `/e: FLANNEL_SUBNET: 10.2.0.0/24 is not in FLANNEL_NETWORK` + correct,
		v4Env + "FLANNEL_SUBNET=10.1.0.1/8":       `/e: FLANNEL_SUBNET: 10.0.0.0/8 is not in FLANNEL_NETWORK` + correct,
		v4Env + "FLANNEL_IPV6_SUBNET=fc00::1/64":  `/e: FLANNEL_IPV6_SUBNET: fc00::/64 is not in FLANNEL_IPV6_NETWORK` + correct,
		dualEnv + "FLANNEL_IPV6_SUBNET=fd00::/64": `/e: FLANNEL_IPV6_SUBNET: fd00::/64 is not in FLANNEL_IPV6_NETWORK` + correct,
		"FLANNEL_IPMASQ":                          `/e:1: FLANNEL_IPMASQ: the value is missing` + correct,
	} {
		_, err := ParseEnv("/e", []byte(text))
		require.EqualError(t, err, "read flannel's subnet: "+want, text)
	}
}

func TestReadEnv(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "subnet.env")
	_, err := ReadEnv(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, path+": no such file")
	require.ErrorContains(t, err, "start flanneld")
	_, err = ReadEnv(dir)
	require.ErrorContains(t, err, "a directory, not a regular file: set \"subnetFile\"")
	require.NoError(t, os.WriteFile(path, []byte(v4Env), 0o644))
	env, err := ReadEnv(path)
	require.NoError(t, err)
	require.Equal(t, prefixes("10.1.0.0/16"), env.Clusters())
	require.NoError(t, os.Truncate(path, maxSize+1))
	_, err = ReadEnv(path)
	require.ErrorContains(t, err, "more than 65536 bytes")
}

func FuzzParseEnv(f *testing.F) {
	f.Add([]byte(v4Env))
	f.Add([]byte(dualEnv))
	f.Fuzz(func(t *testing.T, data []byte) {
		env, err := ParseEnv("/e", data)
		if err != nil {
			return
		}
		require.NotEmpty(t, env.Clusters())
		require.True(t, env.Subnet.IsValid() || env.IPv6Subnet.IsValid())
		_, err = derive(`{"type":"flannel"}`, env)
		require.NoError(t, err)
	})
}
