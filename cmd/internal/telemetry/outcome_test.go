package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

func TestOutcomes(t *testing.T) {
	code := func(code uint) error { return types.NewError(code, "m", "d") }
	for _, tt := range []struct {
		err  error
		want Outcome
	}{
		{nil, OK},
		{errors.New("anything"), Failed},
		{code(100), Failed},
		{configurator.ErrNotChecked, Failed},
		{fmt.Errorf("x: %w: %w", configurator.ErrIncomplete, context.Canceled), Incomplete},
		{fmt.Errorf("x: %w", context.Canceled), Cancelled},
		{errors.Join(code(11), context.DeadlineExceeded), Timeout},
		{configurator.ErrUnhealthy, Unhealthy},
		{code(types.ErrPluginNotAvailable), Unhealthy},
		{code(types.ErrLimitedConnectivity), Unhealthy},
		{configurator.ErrDifferent, Conflict},
		{configurator.ErrInUse, Conflict},
		{configurator.ErrPortTaken, Conflict},
		{configurator.ErrSetUp, Conflict},
		{configurator.ErrExists, Conflict},
		{configurator.ErrListener, Conflict},
		{fmt.Errorf("x: %w", &portmap.ConflictError{}), Conflict},
		{configurator.ErrInvalidAllocation, Invalid},
		{configurator.ErrUnknownNetwork, Invalid},
		{configurator.ErrPluginNotInstalled, Invalid},
		{code(types.ErrInvalidNetworkConfig), Invalid},
		{code(types.ErrIncompatibleCNIVersion), Invalid},
		{configurator.ErrExhausted, Busy},
		{configurator.ErrBridgeFull, Busy},
		{configurator.ErrLimit, Busy},
		{fmt.Errorf("x: %w", code(types.ErrTryAgainLater)), Busy},
	} {
		require.Equal(t, tt.want, outcomeOf(tt.err), "%v", tt.err)
	}
}

func TestErrorTexts(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"plain", "plain"},
		{`netplugin: {"password":"x","a":{}}: unknown`, "netplugin: {...}: unknown"},
		{`cut off: {"password":"x`, "cut off: {...}"},
		{`turned } and {"secret`, "turned } and {...}"},
		{"bytes \xff", "bytes ?"},
		{strings.Repeat("é", 30), strings.Repeat("é", 18) + "..."},
		{strings.Repeat("a", 40), strings.Repeat("a", 40)},
	} {
		require.Equal(t, tt.want, errorText(errors.New(tt.text), 40))
	}
	require.Empty(t, errorText(nil, 40))
}

func FuzzErrorText(f *testing.F) {
	f.Add("ADD: {\"a\":1} x")
	f.Add(strings.Repeat("é", 200) + "\xff}{")
	f.Fuzz(func(t *testing.T, text string) {
		got := errorText(errors.New(text), maxStepErrorText)
		require.LessOrEqual(t, len(got), maxStepErrorText)
		require.True(t, utf8.ValidString(got))
		begin, end := strings.IndexByte(text, '{'), strings.LastIndexByte(text, '}')
		if begin >= 0 && end > begin+20 && utf8.ValidString(text) && len(got) < maxStepErrorText {
			require.Equal(t, text[:begin]+"{...}"+text[end+1:], got)
		}
	})
}
