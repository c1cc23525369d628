package sdk

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
)

// args returns the input of a plugin, with a configuration that identifies it.
func args(conf string) *CmdArgs {
	return &CmdArgs{Conf: &PluginConf{CNIVersion: "1.0.0", Text: []byte(conf)}, Path: []string{"/bin"}}
}

const plain = `{"cniVersion":"1.0.0"}`

// TestInvalidResultOfABinary: a result that is none is a permanent error that names the plugin, and later
// plugins do not get it.
func TestInvalidResultOfABinary(t *testing.T) {
	for out, text := range map[string]string{
		`{"cniVersion":"1.0.0","ips":[null]}`:        "an address is null",
		`{"cniVersion":"1.0.0","interfaces":[null]}`: "an interface is null",
		``:                       "unexpected end of JSON input",
		`garbage`:                "invalid character",
		`{"cniVersion":"9.9.9"}`: "9.9.9",
		`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1"}]}`: "invalid CIDR address",
	} {
		e, _, b := newExec(t)
		b.out = out
		_, err := e.Run(t.Context(), "other", "ADD", args(plain))
		require.ErrorIs(t, err, allocnet.ErrInvalidResult, out)
		require.ErrorContains(t, err, `invalid CNI result of plugin "other"`)
		require.ErrorContains(t, err, text)
	}
}

// TestDefectOfAPlugin: a panic fails only the operation, and does not count as
// a finding of CHECK.
func TestDefectOfAPlugin(t *testing.T) {
	for _, command := range []string{"CHECK", "DEL", "GC"} {
		e, f, b := newExec(t)
		f.defect = true
		var log strings.Builder
		e.Host.Log = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Error})
		_, err := e.Run(t.Context(), "fake", command, args(`{"cniVersion":"1.0.0","cni.dev/valid-attachments":[]}`))
		require.EqualError(t, err, `plugin "fake": `+command+` panicked: no such index`)
		require.EqualValues(t, types.ErrInternal, AsReference(err).Code)
		var coded *types.Error
		require.False(t, errors.As(err, &coded))
		require.Contains(t, log.String(), "[ERROR]")
		require.Contains(t, log.String(), "exec_test.go", "the log shows where")

		_, err = e.Run(t.Context(), "fake", command, args(`{"cniVersion":"1.0.0","novel":1,"cni.dev/valid-attachments":[]}`))
		if command != "CHECK" {
			require.ErrorContains(t, err, "panicked")
		}
		require.Equal(t, []string{"/bin/fake " + command}, b.ran, "the binary has its turn all the same")
	}
}

// TestDelOfWhatAddRan: DEL runs the binaries of the ADD, whatever the native
// plugins support now, and no others.
func TestDelOfWhatAddRan(t *testing.T) {
	for _, c := range []struct {
		keys     string
		binaries []string
		want     []string
	}{
		{"", nil, nil},
		{`,"novel":1`, nil, []string{"/bin/fake DEL"}},
		{"", []string{}, nil},
		{`,"novel":1`, []string{}, nil},
		{`,"novel":1`, []string{"other"}, nil},
		{"", []string{"other", "fake"}, []string{"/bin/fake DEL"}},
		{`,"novel":1`, []string{"fake"}, []string{"/bin/fake DEL"}},
	} {
		e, f, b := newExec(t)
		one := args(`{"cniVersion":"1.0.0"` + c.keys + `}`)
		one.Binaries = c.binaries
		_, err := e.Run(t.Context(), "fake", "DEL", one)
		require.NoError(t, err)
		require.Equal(t, c.want, b.ran, "%+v", c)
		require.Equal(t, []string{"DEL"}, f.called, "it always does what it can itself")
	}
	e, _, b := newExec(t)
	one := args(`{"cniVersion":"1.0.0","novel":1}`)
	one.Path = nil
	_, err := e.Run(t.Context(), "fake", "DEL", one)
	require.ErrorContains(t, err, "no plugin directory")
	one = args(plain)
	one.Binaries = []string{"fake"}
	_, err = e.Run(t.Context(), "fake", "CHECK", one)
	require.NoError(t, err)
	require.Empty(t, b.ran)
}
