package sdk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

// failing is a plugin whose commands fail.
type failing struct {
	Plugin
	err error
}

func (f failing) Add(context.Context, *CmdArgs) (*types100.Result, error) { return nil, f.err }
func (f failing) Del(context.Context, *CmdArgs) error                     { return f.err }

// TestDelDoesNotSucceedByItsWords: an error of DEL must not say what go-cni takes for success.
func TestDelDoesNotSucceedByItsWords(t *testing.T) {
	for _, err := range []error{
		errors.New(`exec: "iptables": executable file not found in $PATH`),
		fmt.Errorf("open leases: %w", &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist}),
		fmt.Errorf("read: %w", errors.New("no such file or directory")),
		types.NewError(11, "table not found", "link not found"),
	} {
		e := &Exec{Plugins: map[string]Factory{"x": func([]byte) (Plugin, error) { return failing{err: err}, nil }}, Host: &Host{Log: hclog.NewNullLogger()}, Lenient: true}
		environ := func(command string) []string {
			return []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c", "CNI_IFNAME=eth0"}
		}
		_, got := e.Answer(t.Context(), "x", []byte(`{"cniVersion":"1.0.0","name":"n"}`), environ("DEL"))
		reported := AsReference(got)
		require.NotContains(t, reported.Error(), "not found")
		require.NotContains(t, reported.Error(), "no such file or directory")
		require.ErrorIs(t, got, err)
		_, got = e.Answer(t.Context(), "x", []byte(`{"cniVersion":"1.0.0","name":"n"}`), environ("ADD"))
		require.Equal(t, AsReference(err), AsReference(got), "only DEL is repeated until it succeeds")
	}
}
