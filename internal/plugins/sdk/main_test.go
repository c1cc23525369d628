package sdk

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
)

func TestAsReference(t *testing.T) {
	coded := func(code uint) error { return types.NewError(code, "bad", "more") }
	for _, test := range []struct {
		name string
		err  error
		want *types.Error
	}{
		{"plain", errors.New("bad"), &types.Error{Code: 999, Msg: "bad"}},
		{"bad CNI_ARGS", coded(types.ErrInvalidEnvironmentVariables), &types.Error{Code: 999, Msg: "bad", Details: "more"}},
		{"unreadable", coded(types.ErrDecodingFailure), &types.Error{Code: 999, Msg: "bad", Details: "more"}},
		{"invalid configuration", coded(types.ErrInvalidNetworkConfig), &types.Error{Code: 999, Msg: "bad", Details: "more"}},
		{"not reported", coded(types.ErrUnknown), &types.Error{Code: 999, Msg: "bad", Details: "more"}},
		{"try again later", coded(types.ErrTryAgainLater), &types.Error{Code: 11, Msg: "bad", Details: "more"}},
		{"wrapped", fmt.Errorf("plugin: %w", coded(types.ErrPluginNotAvailable)), &types.Error{Code: 50, Msg: "bad", Details: "more"}},
		{"finding", finding{errors.New("bad")}, &types.Error{Code: 999, Msg: "bad"}},
	} {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, AsReference(test.err)) })
	}
}
