package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/internal/wire"
)

func TestNotReady(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Ready: func(context.Context) []api.Check {
		return []api.Check{
			{Name: "state directory"},
			{Name: "file", Warning: errors.New("is broken")},
			{Name: "status", Network: "one", Err: fmt.Errorf("network %q: %w", "one", &types.Error{Code: 50, Msg: "no"})},
			{Name: "readiness file", Err: errors.New("is gone")},
		}
	}})
	got := ask(t, socket, "GET", "/readyz", "")
	require.Equal(t, 503, got.status)
	var readiness wire.Readiness
	require.NoError(t, json.Unmarshal([]byte(got.body), &readiness))
	code := uint(50)
	status := wire.Error{Kind: "plugin", Message: `network "one": no`, CNICode: &code, CNIMessage: "no"}
	all := status
	all.Message += "\nis gone"
	all.Causes = []*wire.Error{&status, {Kind: "internal", Message: "is gone"}}
	require.Equal(t, wire.Readiness{Checks: []wire.Check{
		{Name: "state directory", Ready: true},
		{Name: "file", Ready: true, Warning: &wire.Error{Kind: "internal", Message: "is broken"}},
		{Name: "status", Network: "one", Error: &status},
		{Name: "readiness file", Error: &wire.Error{Kind: "internal", Message: "is gone"}},
	}, Error: &all}, readiness)
}

// TestReadinessThatHangs has all requests share one answer; other requests do not wait.
func TestReadinessThatHangs(t *testing.T) {
	var calls atomic.Int32
	arrived, release := make(chan struct{}, 9), make(chan struct{})
	socket, _ := apitest.Serve(t, api.Options{
		Ready: func(ctx context.Context) []api.Check {
			calls.Add(1)
			arrived <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return []api.Check{{Name: "status", Err: ctx.Err()}}
		},
		Limits: api.Limits{Reads: 1, SlotTimeout: time.Hour},
	})
	first := dial(t, socket, request("GET", "/readyz", ""))
	receive(t, arrived)
	require.NoError(t, first.Close())
	statuses := make(chan int, 3)
	for range cap(statuses) {
		go func() {
			got, _ := try(t.Context(), socket, "GET", "/readyz", "")
			statuses <- got.status
		}()
	}
	require.Equal(t, 200, ask(t, socket, "GET", "/v1/allocs", "").status)
	require.Equal(t, int32(1), calls.Load())
	close(release)
	for range cap(statuses) {
		require.Equal(t, 200, receive(t, statuses), "the one that arrived first went away, and did not cancel it")
	}
}

func TestReadinessThatHangsForEver(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{
		Ready: func(ctx context.Context) []api.Check {
			<-ctx.Done()
			return []api.Check{{Name: "status", Err: ctx.Err()}}
		},
		Limits: api.Limits{ReadTimeout: time.Millisecond},
	})
	require.Equal(t, 503, ask(t, socket, "GET", "/readyz", "").status)
}
