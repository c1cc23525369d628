package native

import (
	"context"
	"errors"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// TestRestoreObjects: an object that several allocations share is restored once, counts
// for the first of them, and its error concerns all of them. A panic is an error.
func TestRestoreObjects(t *testing.T) {
	calls := map[string]int{}
	object := func(key string, changed bool, err error) sdk.Object {
		return sdk.Object{Key: key, Restore: func(context.Context) (bool, error) {
			calls[key]++
			if key == "panic" {
				panic("defect")
			}
			return changed, err
		}}
	}
	none := errors.New("none")
	of := func(by int, objects ...sdk.Object) wanted { return newWanted(&sdk.Wanted{Objects: objects}, by) }
	r := &restoration{host: &sdk.Host{Log: hclog.NewNullLogger()}, outcomes: make([]engine.Restored, 4), wanted: []wanted{
		of(0, object("shared", true, nil)), of(1, object("shared", true, nil), object("bad", false, none)),
		of(2, object("bad", false, none)), of(3, object("panic", false, nil)),
	}}
	r.objects(t.Context(), func(w *sdk.Wanted) []sdk.Object { return w.Objects })
	require.Equal(t, map[string]int{"shared": 1, "bad": 1, "panic": 1}, calls)
	require.Equal(t, engine.Restored{Changed: true}, r.outcomes[0])
	for _, i := range []int{1, 2} {
		require.False(t, r.outcomes[i].Changed)
		require.True(t, r.outcomes[i].Check)
		require.ErrorIs(t, r.outcomes[i].Err, none)
	}
	require.ErrorContains(t, r.outcomes[3].Err, "defect")
}

// TestSettle: what follows a restoration is done once, for all of which an element or an object was restored, also if
// it shares it with others.
func TestSettle(t *testing.T) {
	var settled [][]any
	failed := errors.New("failed")
	settle := func(_ context.Context, subjects []any) error {
		settled = append(settled, subjects)
		return failed
	}
	of := func(by int, key string, changed bool) wanted {
		restore := func(context.Context) (bool, error) { return changed, nil }
		return newWanted(&sdk.Wanted{Objects: []sdk.Object{{Key: key, Restore: restore}}, Settle: settle, Subject: by}, by)
	}
	r := &restoration{host: &sdk.Host{Log: hclog.NewNullLogger()}, outcomes: make([]engine.Restored, 4), wanted: []wanted{
		of(0, "shared", true), of(1, "shared", true), of(2, "whole", false), newWanted(&sdk.Wanted{}, 3),
	}}
	r.settle(t.Context())
	require.Empty(t, settled)
	r.objects(t.Context(), func(w *sdk.Wanted) []sdk.Object { return w.Objects })
	r.settle(t.Context())
	require.Equal(t, [][]any{{0, 1}}, settled)
	require.ErrorIs(t, r.outcomes[1].Err, failed)
	require.NoError(t, r.outcomes[2].Err)
}
