package sdk

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

// args returns the input of a plugin, with a configuration that identifies it.
func args(conf string) *CmdArgs {
	return &CmdArgs{Conf: &PluginConf{CNIVersion: "1.0.0", Text: []byte(conf)}, Path: []string{"/bin"}}
}

const plain = `{"cniVersion":"1.0.0"}`

// TestNullInABinarysResult: later plugins get the result without the null.
func TestNullInABinarysResult(t *testing.T) {
	for _, out := range []string{`"ips":[null]`, `"interfaces":[null]`} {
		e, _, b := newExec(t)
		b.out = `{"cniVersion":"1.0.0",` + out + `}`
		_, err := e.Run(t.Context(), "other", "ADD", args(plain))
		require.ErrorContains(t, err, "is null", out)
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
		_, err := e.Run(t.Context(), "fake", command, args(plain))
		require.EqualError(t, err, `plugin "fake": `+command+` panicked: no such index`)
		require.EqualValues(t, types.ErrInternal, AsReference(err).Code)
		var coded *types.Error
		require.False(t, errors.As(err, &coded))
		require.Contains(t, log.String(), "[ERROR]")
		require.Contains(t, log.String(), "exec_test.go", "the log shows where")

		_, err = e.Run(t.Context(), "fake", command, args(`{"cniVersion":"1.0.0","novel":1}`))
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
