package cni

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestReadEnv(t *testing.T) {
	environ := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_ARGS": "A=b",
		"CNI_PATH": "/opt/cni/bin", "CNI_NETNS_OVERRIDE": "1", "SECRET": "hunter2",
	}
	e, err := ReadEnv(func(name string) string { return environ[name] })
	require.NoError(t, err)
	require.Equal(t, Env{"ADD", "c", "/n", "eth0", "A=b", "/opt/cni/bin", "1"}, e)
	for name, value := range map[string]string{"CNI_ARGS": "A=\xff", "CNI_COMMAND": ""} {
		before := environ[name]
		environ[name] = value
		_, err = ReadEnv(func(name string) string { return environ[name] })
		require.ErrorContains(t, err, "CNI error 4: "+name)
		environ[name] = before
	}
}

func TestReadConfig(t *testing.T) {
	config, err := ReadConfig(strings.NewReader(strings.Repeat("x", MaxConfig)))
	require.NoError(t, err)
	require.Len(t, config, MaxConfig)
	_, err = ReadConfig(strings.NewReader(strings.Repeat("x", MaxConfig+1)))
	require.EqualError(t, err, "CNI error 7: network configuration is longer than 524288 bytes")
	_, err = ReadConfig(iotest.ErrReader(errors.New("broken")))
	require.EqualError(t, err, "CNI error 5: read the network configuration from stdin; broken")
}

func TestVersionResult(t *testing.T) {
	const all = `"supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`
	for version, want := range map[string]string{"0.4.0": "0.4.0", "0.2.0": "1.1.0", "": "1.1.0"} {
		require.Equal(t, `{"cniVersion":"`+want+`",`+all, string(VersionResult(version)))
	}
	require.True(t, AtLeast("0.4.0", "0.4.0"))
	require.True(t, AtLeast("1.1.0", "0.4.0"))
	require.False(t, AtLeast("0.3.1", "0.4.0"))
	require.Equal(t, Newest, Versions[len(Versions)-1])
}
